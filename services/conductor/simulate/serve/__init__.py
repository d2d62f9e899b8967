"""The serving simulator: the conductor's own core on virtual time, around modelled machines."""
