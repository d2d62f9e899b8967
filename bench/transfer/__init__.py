"""Bulk transfer between two processes of this host, beside what others offer."""
