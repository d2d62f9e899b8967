"""`moonpool plan`: how many prefills and decodes, and how much cache, a workload needs."""
