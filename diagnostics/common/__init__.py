"""What the diagnostics share, a module for each subject. No measurement stands here: each diagnostic beside this folder
is one.

    runs       what a run folder says: its settings, its labels, its checkpoints; options that all diagnostics have
    sampling   states from checkpoints, and what worker processes sample of them
    kept       numbers that stay measured
    intervals  Student's t, Welch, bootstrap, and how they are written
    figures    how figures look
"""
