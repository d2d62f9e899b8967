"""The simulator: the mesh's own cores and policies on recorded traffic and virtual time. It talks
to nobody."""
