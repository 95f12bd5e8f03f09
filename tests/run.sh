# run.sh - runs a test program or a check. When it has ended, this shows what it said under a heading
# with how many have ended: `== tests/test_ops (12 of 48, 3 s)`.
#     TIMEOUT=seconds sh tests/run.sh PROGRESS TOTAL NAME RESULT COMMAND...
# RESULT gets the output, whose last line is "N passed, N failed, N skipped". If the command crashed,
# hung or did not build, a line says so, and it counts as one failure. PROGRESS is the file that has
# a line for each that has ended.
. tests/verdict.sh
progress=$1 total=$2 name=$3 result=$4; shift 4
limit=
if [ -n "$TIMEOUT" ] && command -v timeout >/dev/null 2>&1; then limit="timeout $TIMEOUT"; fi
mkdir -p "$(dirname "$result")"
start=$(date +%s)
$limit "$@" >"$result" 2>&1 </dev/null & child=$!
trap 'kill $child; rm -f "$result"; exit 143' TERM INT     # `timeout` has a process group of its own
wait $child; status=$?
seconds=$(($(date +%s) - start))
case $status in
0 | 1) [ -n "$(tail -n 1 "$result" | counted)" ] && why= || why="ended with status $status and no count" ;;
124) [ -n "$limit" ] && why="timed out after $TIMEOUT s" || why="ended with status 124" ;;
*) why="ended with status $status" ;;
esac
[ -z "$why" ] || { echo "FAILED  $name: $why"; verdict 0 1 0; } >>"$result"
echo "$name" >>"$progress"                       # its line's number tells how many have ended
{
    ended=$(grep -nxF -- "$name" "$progress" | tail -n 1 | cut -d: -f1)
    echo "== $name ($ended of $total, $seconds s)"
    cat "$result"
}
