#!/bin/sh
# What flux.h writes, Python's safetensors and NumPy read bit for bit, and the other way round:
# check_python.py says how. Skipped where python3 has no numpy or no safetensors.
. tests/check.sh
need python3 || finish
for module in numpy safetensors.numpy; do
    python3 -c "import $module" 2>/dev/null || { skip "check_python.sh: python3 has no ${module%.*}; pip install ${module%.*}"; finish; }
done
implementation || finish
$CC -std=c11 -O0 tests/python_files.c "$impl" -o "$tmp/python_files" -lm || { fail "tests/python_files.c does not compile"; finish; }
python3 tests/check_python.py "$tmp/python_files" "$tmp" >"$tmp/result" 2>&1
sed '$d' "$tmp/result"
add check_python.py "$tmp/result"
finish
