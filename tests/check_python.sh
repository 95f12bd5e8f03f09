#!/bin/sh
# What flux.h writes, Python's safetensors and NumPy read bit for bit, and the other way round: check_python.py says how.
# The last line is "N passed, N failed, N skipped". Skipped where python3 has no numpy or no safetensors.
. tests/check.sh
need python3 || finish
for module in numpy safetensors.numpy; do
    python3 -c "import $module" 2>/dev/null || { skip "check_python.sh: python3 has no ${module%.*}; pip install ${module%.*}"; finish; }
done
$CC -std=c11 -O0 tests/python_files.c -o "$tmp/python_files" -lm || { fail "tests/python_files.c does not compile"; finish; }
python3 tests/check_python.py "$tmp/python_files" "$tmp" >"$tmp/result" 2>&1
cat "$tmp/result"
if tail -n 1 "$tmp/result" | grep -q '^[0-9]* passed, [0-9]* failed, [0-9]* skipped$'; then
    tail -n 1 "$tmp/result" | grep -q ' 0 failed'
    status=$?
    rm -rf "$tmp"
    exit $status
fi
fail "check_python.py ended early"
finish
