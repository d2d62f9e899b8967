"""The mesh's front door: OpenAI's HTTP API in, requests to conductors and instances out.

It authenticates, applies the chat template, tokenizes, names the blocks, asks for a plan, and
streams the answer, continuing it elsewhere when an instance dies. It computes no model and holds
no KV.
"""
