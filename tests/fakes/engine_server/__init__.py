"""Simulated engine servers: programs that speak the protocols of SGLang and vLLM, without a model.

They are started as the real servers are: `environment.py` writes an engine environment whose interpreter runs this
package. The program is a frontend process with the HTTP routes (`frontend.py`, `sglang.py`, `vllm.py`) and a core
process that generates (`core.py`). Tokens and logprobs depend only on the content of the weights and on the prefix
(`token_model.py`), so a wrong version and a stale cache change the logprobs. Standard library only: a start takes 0.1 s
of CPU time.
"""
