"""Is my PPO PPO? `python diagnostics/conformance --help` says how to ask. The folder needs nothing beside it."""

from comparison import main

main()
