"""Engines that are servers in processes of their own: SGLang and vLLM, started, supervised and refreshed by a node.

`engine.py` is the engine; it owns one `replica.py` per server, among which `request_router.py` distributes requests. A
replica has a process (`process.py`), a client (`http.py`) and a dialect (`sglang.py`, `vllm.py`), which knows routes
and formats of one server program. Weights reach the servers through shared memory (`model_folder.py`). `in_server/`
runs inside the server's own environment. `installation/` installs the server programs.
"""
