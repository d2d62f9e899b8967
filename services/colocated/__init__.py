"""Prefill and decode in one process, over one pool: the small mode, and the baseline that
disaggregation is measured against. Its core is `moonpool.instance.core`, as for the other two."""
