"""The code that the diagnostics share, with a module for each subject. The diagnostics beside this folder work wherever
it is copied with them.

    runs       what a run folder says (settings, labels, checkpoints), and the options that all diagnostics have
    sampling   states from checkpoints, and what worker processes sample from them
    kept       numbers that are kept once they are measured
    intervals  intervals by Student's t, Welch and the bootstrap, and how they are written
    figures    what figures look like
"""
