"""The bridge: speaks on the mesh for an engine that is not ours.

It follows the engine's own KV events and tells them as ours, under names made from token ids. Such
engines can be found (`moonpool where`); they are never planned on, and their blocks never read: the
bytes have another layout. Imported by nobody.
"""
