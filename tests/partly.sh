# partly.sh NAME PART COMMAND... - a test program on a device of software whose kernels cc compiles,
# since there is no tcc: of its tests it runs those with PART in their names, or none ("-"), and
# counts the rest as one that is skipped.
. tests/verdict.sh
name=$1 part=$2; shift 2
said='0 passed, 0 failed, 0 skipped' but=
if [ "$part" != - ]; then
    said=$("$@" "$part" 2>&1)
    status=$? but=" but for $part"
    case $status,$(echo "$said" | counted) in
    *,0\ 0\ 0) echo "FAILED  $name: no test has $part in its name"; verdict 0 1 0; exit ;;
    0,*\ * | 1,*\ *) ;;
    *) echo "$said"; exit $status ;;
    esac
fi
echo "$said" | sed '$d'
echo "skipped $name$but: without tcc its kernels take minutes to compile; package: tcc"
set -- $(echo "$said" | counted)
verdict "$1" "$2" $(($3 + 1))
