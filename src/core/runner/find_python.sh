# Finds a Python >= 3.6 and hands stdin over to it: the constant part of every command that farcell sends (docs/protocol.md, "The command").
#
# The engine drops the lines that begin with a number sign, joins the rest with single spaces and puts the result between single quotes behind
# exec /bin/sh -c. The login shell that reads it may be any (sh, bash, zsh, fish, csh), so below this block there is no single quote,
# no backslash, no exclamation mark, no number sign, and no line that needs its newline.
#
# stdin: nonce, path of the Python to use (or an empty line), then lines for Python. read takes single bytes from a pipe, so the rest stays there.
#
# A candidate that ends with 0, 99 or a signal has read its lines, and its word is final. Anything else means that it is too old (97), is not there (127),
# cannot start (126, 1, ...) or found no loader to run (98, the one that starts with the letter e, byte 101): the next one is tried.
# The loader itself never ends with such a status, and a candidate that comes after a broken one that ate the loader runs nothing.
# The stub must parse in Python 2, and can hold no string.
IFS= read -r n;
IFS= read -r p;
set -f;
t=;
if [ -n "$p" ];
then set -- "$p";
else set -- python3 python /usr/bin/python3 /usr/local/bin/python3 /opt/bin/python3 /usr/libexec/platform-python
python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8 python3.7 python3.6;
fi;
for c in "$@";
do command -v "$c" >/dev/null 2>&1 || continue;
"$c" -E -s -S -c "import sys; sys.version_info < (3, 6) and sys.exit(97); l = sys.stdin.buffer.readline(); l[:1] == bytes([101]) or sys.exit(98); exec(l)";
s=$?;
if [ $s -eq 0 ] || [ $s -eq 99 ] || [ $s -gt 128 ];
then exit $s;
fi;
if [ $s -eq 97 ];
then v=$("$c" -V 2>&1 </dev/null);
w=unknown;
for w in $v;
do :;
done;
t="$t $c=$w";
else t="$t $c=exit-$s";
fi;
done;
if [ -z "$t" ];
then t=" none of: $*";
fi;
echo "$n no-python$t"
