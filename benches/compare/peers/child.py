# The far end of a bare pipe: it executes what comes and says so. Read and handed to `python -c` by both floors, the one in Python and the one in Rust.
import sys
read, write, flush = sys.stdin.buffer.read, sys.stdout.buffer.write, sys.stdout.buffer.flush
names = {}
head = read(4)
while head:
    exec(read(int.from_bytes(head, 'big')), names)
    write(b'\0\0\0\2ok')
    flush()
    head = read(4)
