"""Is my PPO PPO? `python figures/conformance --help` says how to ask. The folder needs nothing beside it."""

from comparison import main

main()
