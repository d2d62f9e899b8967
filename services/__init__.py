"""The services of a mesh. They talk by message and never import one another."""
