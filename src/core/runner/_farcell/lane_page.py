"""How the page of a lane is laid out: words of eight bytes, each with one writer, and where a kernel in a directory has its lane the last reply."""

NAME = "lane"  # of the file in a kernel's directory
# A write of so many bytes into a pipe comes whole or not at all, so that whoever reads it has all of a frame at once.
FRAME_MAX = 4096

# What a cell of the lane has come to. TAKING is said before the pipe is read: what is neither there nor in the page was taken by one that died.
# ENDING: it has come to its end, and our mark is looked at. DIRECT: the reply is being written to the host.
FREE, TAKING, RUNNING, ENDING, DIRECT, SENT, VIA = range(7)

# The interpreter's words, but for NEXT (lanes over pipes only), which belongs to whose turn it is:
NEXT, STATE, ENDED, NUMBER, SEQ, STARTED, TIMEOUT, LIMIT = range(8)
ID = 8  # four words
# REPLY: the number of the cell whose reply is in the page, LENGTH its bytes. COUNT: how many cells have been taken. GIVEN: the last one that was given back.
REPLY, LENGTH, COUNT, GIVEN = range(12, 16)
# The supervisor's. BARRED: nothing is run from the lane now. SETTLED: the last cell of the lane that it has answered in a file.
# PASSED: the last cell of all that it has answered in a file; whatever was shipped before that one is over, too.
ADOPTED, READS, LATE, PLAIN, BARRED, SETTLED, PASSED = range(16, 23)
# Of those who put cells into a lane in a directory. PUT: the last one's number. Of the reply in the page, ACKED: its host has it; KEPT: it is in a file, too.
PUT, ACKED, KEPT = range(24, 27)
PUT_ID = 28  # four words
VERSION = 32  # written once
KIND = 2      # what is written there: a page of another kind is not used
WORDS = 33

REPLY_AT = 4096
REPLY_MAX = 4096
SIZE = REPLY_AT + REPLY_MAX
