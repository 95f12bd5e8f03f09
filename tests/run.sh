# run.sh - runs a test program or a check and shows what it says when it has ended, with how many have: `== tests/test_ops (12 of 48)`.
#     TIMEOUT=seconds sh tests/run.sh PROGRESS TOTAL NAME RESULT COMMAND...
# RESULT gets the output, whose last line is "N passed, N failed, N skipped"; if it crashed, hung or did not build, a line that
# says so and counts as one failure. PROGRESS is the file that has a line for each that has ended.
progress=$1 total=$2 name=$3 result=$4; shift 4
limit=
if [ -n "$TIMEOUT" ] && command -v timeout >/dev/null 2>&1; then limit="timeout $TIMEOUT"; fi
mkdir -p "$(dirname "$result")"
start=$(date +%s)
$limit "$@" >"$result" 2>&1 </dev/null & child=$!
trap 'kill $child; exit 143' TERM INT            # `timeout` has a process group of its own
wait $child; status=$?
seconds=$(($(date +%s) - start))
counted='^[0-9]* passed, [0-9]* failed, [0-9]* skipped$'
case $status in
0 | 1) tail -n 1 "$result" | grep -q "$counted" && why= || why="ended with status $status and no count" ;;
124) [ -n "$limit" ] && why="timed out after $TIMEOUT s" || why="ended with status 124" ;;
*) why="ended with status $status" ;;
esac
[ -z "$why" ] || printf 'FAILED  %s: %s\n0 passed, 1 failed, 0 skipped\n' "$name" "$why" >>"$result"
echo "$name" >>"$progress"                       # the line's number tells how many: two that end at once have one each
{ echo "== $name ($(grep -nxF -- "$name" "$progress" | tail -n 1 | cut -d: -f1) of $total, $seconds s)"; cat "$result"; }
