"""What owners of pages say about training models on them: opt-outs by seven signals, and which of them holds.

Each signal is read by a pure function, from what was fetched to rules or preferences, each with the words that said so.
Every file and header is hostile: sizes are bounded, and patterns are matched in linear time. What can't be read says
nothing, and is counted as unreadable.
"""
