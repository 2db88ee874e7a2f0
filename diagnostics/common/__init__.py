"""The code that the diagnostics share, with a module for each subject. It measures nothing itself: each diagnostic
beside this folder is one measurement.

    runs       what a run folder says (settings, labels, checkpoints), and the options that all diagnostics have
    sampling   states from checkpoints, and what worker processes sample from them
    kept       numbers that are kept once they are measured
    intervals  intervals by Student's t, Welch and the bootstrap, and how they are written
    figures    what figures look like
"""
