"""The code that the diagnostics share, with a module for each subject. The diagnostics beside this folder work wherever
it is copied with them.

    runs       what a run folder says (settings, labels, checkpoints), and the options that all diagnostics have
    table      rows of numbers, which are measured side by side and kept
    sampling   states from checkpoints, and what is sampled from them
    intervals  intervals by Student's t, Welch and the bootstrap, and how they are written
    plots      what figures look like
    checks     what a check of the report is
    recorded   rollouts and updates of a script, beside what the environments say
"""
