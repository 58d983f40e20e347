"""The search agent: text protocol, ReAct loop, tools, webs, engine interface. No jax."""
