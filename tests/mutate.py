#!/usr/bin/env python3
"""Mutation testing: which one-line defects in flux.h's CPU code would the tests see?

    make mutate [SEED=1] [N=100] [JOBS=2] [RANGE=4028-6000] [LIST=1]

N lines are drawn from the implementation (all but the GPU layer; or from RANGE) and a defect is
made in each: a statement deleted, a relation turned, a constant shifted, two arguments swapped, &&
and || swapped, a sign turned. The same SEED draws the same; LIST shows what would be drawn.

The header takes long to compile, so all N defects are compiled at once, asleep: `s;` becomes
`{ if (FLUX_MUTANT(17)) { s'; } else { s; } }`, and the variable FLUX_MUTANT in the environment says
which one wakes. A first run of every test program without any says which defects' lines it comes
to; these programs then run with the defect, those first that have seen most for their time, until
one fails. What no program comes to (other processors' code, other systems') is listed, not judged.
What survives is compiled and run once more with what config=sanitize has, as CI does it, unless the
compiler has no sanitizers. A defect that survives that, too, is made once more by itself, and is
called equivalent if the object that the compiler makes of it is the original's, byte for byte.
Whether another survivor changes a result is for a reader to judge.

Everything happens in build/mutate; the tree is not touched. Started by root, the programs run as
nobody, who must be able to reach that folder."""
import collections
import concurrent.futures
import glob
import os
import queue
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.getcwd()
WORK = os.path.join(ROOT, "build", "mutate")
TREE = os.path.join(WORK, "tree")
HEADERS = ("flux_cuda.h", "flux_hip.h")
CC = os.environ.get("CC", "cc").split() + ["-std=c11"]
ASLEEP = CC + ["-O1", "-include", "switch.h", "-I."]
PATTERN = "-ftrivial-auto-var-init=pattern"
OPENED = ["-DTEST_OPENED"] + [PATTERN for _ in "1" if subprocess.run(   # as in tests/opened.mk
    CC + [PATTERN, "-fsyntax-only", "-x", "c", os.devnull], stderr=subprocess.DEVNULL).returncode == 0]
OWN = re.compile(r'^ *# *define (FLUX_MALLOC|FLUX_DEBUG|FLUX__|STB_)', re.M)   # but for these
STRICT = ["-Werror=int-conversion", "-Werror=incompatible-pointer-types",
          "-Werror=discarded-qualifiers", "-Werror=format"]
SANITIZE = ["-DFLUX_DEBUG", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
            "-fno-omit-frame-pointer"]                       # as in the Makefile
NOBODY = 65534
LONG = 1.0         # seconds of a program from which on its tests are taken one by one
# about the software GPU, and long; and what test_images_stb has, but that images are not decoded
LEFT_OUT = {"test_softgpu", "test_gpu", "test_images"}

# What every program is linked with: which defect is awake, and a byte for each that is come to.
RUNTIME = r'''
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
int flux_mutant = -1;
static unsigned char own[COUNT];
volatile unsigned char *flux_mutants_met = own;
__attribute__((constructor(101))) static void begin(void) {
    const char *awake = getenv("FLUX_MUTANT"), *met = getenv("FLUX_MUTANTS_MET");
    if (awake) flux_mutant = atoi(awake);
    if (!met) return;
    const int f = open(met, O_RDWR);
    void *p = f < 0 ? MAP_FAILED : mmap(NULL, COUNT, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    if (p != MAP_FAILED) flux_mutants_met = p;
}
'''
SWITCH = '''extern int flux_mutant;
extern volatile unsigned char *flux_mutants_met;
#define FLUX_MUTANT(k) (flux_mutants_met[k] = 1, flux_mutant == (k))
'''

# ---------------- reading a line of C

TOKEN = re.compile(r'''"(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | /\*.*?\*/ | //.*
                       | [A-Za-z_]\w* | 0[xX][0-9a-fA-F]+\w*
                       | \d[\w.]*(?:(?<=[eE])[+-]\w+)? | \.\d\w*
                       | <<= | >>= | -> | \+\+ | -- | << | >> | <= | >= | == | != | && | \|\|
                       | [-+*/%&|^]= | \s+ | \#\#? | .''', re.X)
KEYWORDS = {"if", "while", "for", "switch", "return", "sizeof", "else", "do", "case"}
NO_STATEMENT = {"typedef", "static", "struct", "union", "enum", "goto"}
DECLARATION = re.compile(r'''
    (?:(?:const|unsigned|struct|long)\s+)* [A-Za-z_]\w* \s+ (?:const\s+)? \**\s*
        (?:(?:const|FLUX__RESTRICT)\s+)? [A-Za-z_]\w* \s* (?:=|,|;|\[)
    | (?:const\s+)? [A-Za-z_]\w* \s+ \*+ \s* [A-Za-z_]''', re.X)


class Region:
    """What a defect may be made in. kind: a statement, or an expression: a truth, a value, or one
    whose value nobody takes ("void"). may_go: a statement that may be deleted."""
    def __init__(self, kind, start, end, may_go=False):
        self.kind, self.start, self.end, self.may_go = kind, start, end, may_go


def tokens_of(line):
    """(token, where it begins) for all of a line, spaces too."""
    at, tokens = 0, []
    for t in TOKEN.findall(line):
        tokens.append((t, at))
        at += len(t)
    return tokens


def text_of(ts):
    return "".join(t for t, _ in ts)


def is_space(t):
    return t.isspace() or t.startswith("/*") or t.startswith("//")


def closing(ts, i):
    """The number of the token that closes the bracket i, or None if the line ends before."""
    depth = 0
    for j in range(i, len(ts)):
        depth += ts[j][0] in ("(", "[", "{")
        depth -= ts[j][0] in (")", "]", "}")
        if depth == 0:
            return j
    return None


def outside(ts, i, end, mark):
    """Where `mark` stands outside of brackets in ts[i:end]."""
    depth, found = 0, []
    for j in range(i, end):
        depth += ts[j][0] in ("(", "[", "{")
        depth -= ts[j][0] in (")", "]", "}")
        if ts[j][0] == mark and depth == 0:
            found.append(j)
    return found


def declared_values(ts, i, end):
    """Of `T a = X, *b = Y` in ts[i:end]: X and Y."""
    out = []
    for cut in outside(ts, i, end, ",") + [end]:
        eq = outside(ts, i, cut, "=")
        first = eq[0] + 1 if eq else cut
        while first < cut and is_space(ts[first][0]):
            first += 1
        if first < cut and ts[first][0] != "{":
            out.append(Region("value", ts[first][1], ts[cut][1]))
        i = cut + 1
    return out


def header_regions(line, ts, word, first, shut):
    """Of `if (...)`, `for (...)`: what stands in its brackets."""
    if word != "for":
        return [Region("value" if word == "switch" else "truth", ts[first][1], ts[shut][1])]
    out, semis = [], outside(ts, first, shut, ";")
    if len(semis) != 2:
        return out
    if DECLARATION.match(line[ts[first][1]:ts[semis[0]][1] + 1]):
        out += declared_values(ts, first, semis[0])
    for a, b, kind in ((semis[0] + 1, semis[1], "truth"), (semis[1] + 1, shut, "void")):
        if line[ts[a][1]:ts[b][1]].strip():
            out.append(Region(kind, ts[a][1], ts[b][1]))
    return out


def regions(line):
    """What of a line of a function's body may be changed; empty where it is not understood."""
    ts = tokens_of(line) + [("", len(line))]
    out, i, guarded = [], 0, False
    while i < len(ts) - 1:
        t, at = ts[i]
        if is_space(t) or t in ("{", "}", ";", "\\"):
            i += 1
        elif t in ("else", "do"):
            i, guarded = i + 1, True
        elif t in ("case", "default"):
            colon = outside(ts, i, len(ts), ":")
            if not colon:
                break
            i = colon[0] + 1
        elif t in ("if", "while", "for", "switch"):
            j = i + 1
            while j < len(ts) - 1 and is_space(ts[j][0]):
                j += 1
            shut = closing(ts, j) if ts[j][0] == "(" else None
            if shut is None:
                break
            out += header_regions(line, ts, t, j + 1, shut)
            i, guarded = shut + 1, True
        else:
            semis = outside(ts, i, len(ts), ";")
            if not semis or t in NO_STATEMENT or not re.match(r'[\w*(+\-]', t):
                break
            text = line[at:ts[semis[0]][1] + 1]
            if re.match(r'\w+;', text) and t not in ("return", "break", "continue"):
                break                     # } name; of a typedef
            if t not in ("return", "break", "continue") and DECLARATION.match(text):
                out += declared_values(ts, i, semis[0])
            else:
                may_go = (t != "return" or guarded or text == "return;") and "(void)" != text[:6]
                out.append(Region("statement", at, ts[semis[0]][1] + 1, may_go))
            i, guarded = semis[0] + 1, False
    return out


HEAD = re.compile(r'\s*(\} )?(else )?(if|for|while) \(.*\)$')


def candidates(lines, only):
    """The lines of the implementation that begin where a statement may, with their regions."""
    start = next(i for i, line in enumerate(lines) if line.startswith("#define FLUX__IMPLEMENTED"))
    room, boundary, comment = "", True, False
    for i in range(start, len(lines)):
        line = lines[i]
        banner = re.match(r'/\* -{20,} ([a-z]+/\w+\.h)$', line)
        room = banner.group(1) if banner else room
        if comment:
            comment = "*/" not in line
            continue
        bare = re.sub(r'/\*.*?\*/|//.*', '', line).rstrip().rstrip("\\").rstrip()
        if "/*" in bare:
            comment, bare = True, bare[:bare.index("/*")].rstrip()
        meant = not room.startswith("gpu/") and (not only or only[0] <= i + 1 <= only[1])
        if boundary and meant and not comment and "#" not in bare:
            offset = 0
            if re.match(r'[A-Za-z]', line):     # a function's heading: what its braces hold there
                heading = ") {" in line and not re.match(r'typedef|struct|enum|union', line)
                offset = line.find(") {") + 3 if heading else len(line)
            found = regions(line[offset:].rstrip("\n"))
            for r in found:
                r.start, r.end = r.start + offset, r.end + offset
            if found:
                yield i, found
        if bare.lstrip().startswith("#"):
            boundary = True
        elif bare:
            boundary = bare[-1] in ";{}:" or bool(HEAD.match(bare)) or bare.endswith("else")


# ---------------- defects

RELATIONS = {"<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="], ">=": [">", "<"],
             "==": ["!="], "!=": ["=="]}
SIGNS = {"+": "-", "-": "+", "+=": "-=", "-=": "+=", "++": "--", "--": "++"}


# Exchanging what these are given changes no result (but strcmp's, where it sorts).
COMMUTE = {"strcmp", "strncmp", "memcmp", "fmin", "fmax", "fminf", "fmaxf", "flux__plus",
           "flux__times", "flux__gemm_min", "flux__same_dims", "flux__same_device", "flux__same8"}


def shifted(number, by):
    if not number.isdigit():
        return "(%s %d)" % (number + (" +" if by > 0 else " -"), 1)
    return str(int(number) + by) if int(number) + by >= 0 else "(%d)" % (int(number) + by)


def swaps(ts):
    """Of calls, neighbouring arguments: the ranges of both's tokens."""
    for i in range(1, len(ts)):
        name = ts[i - 1][0]
        if ts[i][0] != "(" or not re.match(r'[A-Za-z_]\w*$', name) or name in KEYWORDS | COMMUTE:
            continue
        shut = closing(ts, i)
        if shut is None:
            continue
        edges = [i] + outside(ts, i + 1, shut, ",") + [shut]
        for a, b, c in zip(edges, edges[1:], edges[2:]):
            yield (a + 1, b), (b + 1, c)


def swapped(ts, one, two):
    a, b = text_of(ts[one[0]:one[1]]), text_of(ts[two[0]:two[1]])
    if not a.strip() or not b.strip() or a.strip() == b.strip():
        return None
    lead = b[:len(b) - len(b.lstrip())]
    return text_of(ts[:one[0]]) + b.strip() + "," + lead + a.strip() + text_of(ts[two[1]:])


def defects(text, region):
    """All defects of one piece of code: [(kind, the changed text)]."""
    ts, out = tokens_of(text), []

    def put(i, new, kind):
        out.append((kind, text_of(ts[:i]) + new + text_of(ts[i + 1:])))

    def spaced(i):
        return 0 < i < len(ts) - 1 and ts[i - 1][0].isspace() and ts[i + 1][0].isspace()

    if region.may_go:
        out.append(("deleted", ""))
    last = ""
    for i, (t, _) in enumerate(ts):
        if t in RELATIONS and spaced(i):
            for new in RELATIONS[t]:
                put(i, new, "relation")
        elif t in ("&&", "||") and spaced(i):
            put(i, "||" if t == "&&" else "&&", "logic")
        elif t in ("true", "false"):
            put(i, "false" if t == "true" else "true", "logic")
        elif t == "!":
            put(i, "", "logic")
        elif t in SIGNS and (spaced(i) or t in ("++", "--")):
            put(i, SIGNS[t], "sign")
        elif t == "-" and last in ("", "(", ",", "=", "?", ":", "return"):
            put(i, "", "sign")
        elif re.match(r'\.?\d', t):
            put(i, shifted(t, 1), "constant")
            put(i, shifted(t, -1), "constant")
        last = last if is_space(t) else t
    for one, two in swaps(ts):
        new = swapped(ts, one, two)
        if new:
            out.append(("swapped", new))
    return out


def asleep(region, k, old, new):
    if region.kind == "statement":
        return "{ if (FLUX_MUTANT(%d)) { %s } else { %s } }" % (k, new, old)
    form = {"truth": "FLUX_MUTANT(%d) ? !!(%s) : !!(%s)",
            "value": "(FLUX_MUTANT(%d) ? (%s) : (%s))",
            "void": "FLUX_MUTANT(%d) ? (void)(%s) : (void)(%s)"}
    return form[region.kind] % (k, new, old)


Mutant = collections.namedtuple("Mutant", "line kind was asleep alone")


def draw(lines, seed, n, only):
    chance, mutants = random.Random(seed), []
    places = list(candidates(lines, only))
    chance.shuffle(places)
    for i, found in places:
        if len(mutants) == n:
            break
        kinds = collections.defaultdict(list)
        for r in found:
            old = lines[i][r.start:r.end]
            for kind, new in defects(old, r):
                kinds[kind].append((r, old, new))
        if not kinds:
            continue
        kind = chance.choice(sorted(kinds))
        r, old, new = chance.choice(kinds[kind])
        head, tail = lines[i][:r.start], lines[i][r.end:]
        mutants.append(Mutant(i, kind, lines[i], head + asleep(r, len(mutants), old, new) + tail,
                              head + (new or ";") + tail))
    return mutants, len(places)


# ---------------- compiling

def call(command, cwd):
    return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, text=True, errors="replace")


def blamed(said, mutants, alive):
    """The defects that the compiler's errors speak of, or the last before the first of them: it
    can be a declaration that was taken for a statement."""
    told, good = set(), True
    for line in said.splitlines():
        m = re.match(r'.*?flux\.h:(\d+):\d+: (error|warning|note|fatal)', line)
        if m and m.group(2) != "note":
            good = m.group(2) == "warning"
        if m and not good:
            told.add(int(m.group(1)))
    bad = {k for k in alive if mutants[k].line + 1 in told}
    before = [k for k in alive if told and 0 < min(told) - mutants[k].line < 60]
    return bad or set(sorted(before, key=lambda k: mutants[k].line)[-1:])


def write_opened(what):
    """flux.h of the tree as tests/opened.mk has it for programs that share one implementation."""
    text = call(["awk", "-v", "what=" + what, "-f", "tests/opened.awk", "flux.h"], TREE).stdout
    with open(os.path.join(TREE, "opened", what + ".h"), "w") as f:
        f.write(text)


def compile_all(lines, mutants, alive, checks):
    """Compiles the implementation with those defects of `alive` that compile; says which. checks:
    the sanitizers' options, or none."""
    while True:
        text = list(lines)
        for k in alive:
            text[mutants[k].line] = mutants[k].asleep
        with open(os.path.join(TREE, "flux.h"), "w") as f:
            f.writelines(text)
        write_opened("defined")
        r = call(ASLEEP + STRICT + OPENED + checks + ["-c", "tests/impl.c", "-o", "impl.o"], TREE)
        if r.returncode == 0:
            return alive
        bad = blamed(r.stdout, mutants, alive)
        if not bad:
            sys.exit("mutate: no defect is to blame for this:\n" + r.stdout[:3000])
        alive -= bad


def build(name, checks):
    with open(os.path.join(TREE, "tests", name + ".c")) as f:
        own = OWN.search(f.read())
    objects = ["runtime.o"] if own else ["runtime.o", "impl.o"]
    shared = [] if own else OPENED + ["-O0"]     # a test's own code need not be fast
    command = ASLEEP + shared + checks + ["tests/%s.c" % name] + objects
    command += ["-o", "bin/" + name, "-lm"]
    r = call(command, TREE)
    if r.returncode == 0:
        return name
    print("left out: %s does not build: %s" % (name, r.stdout[:300]), flush=True)
    return None


def object_of(lines, name, m=None):
    """What the compiler makes of the implementation with this defect alone, or without any."""
    one, text = os.path.join(WORK, "alone-%s" % name), list(lines)
    os.makedirs(os.path.join(one, "tests"))
    for file in HEADERS + ("tests/impl.c", "tests/counted.h", "tests/inside.h", "tests/open.h"):
        shutil.copy(os.path.join(ROOT, file), os.path.join(one, file))
    if m:
        text[m.line] = m.alone
    with open(os.path.join(one, "flux.h"), "w") as f:
        f.writelines(text)
    if call(CC + ["-O1", "-c", "tests/impl.c", "-o", "impl.o"], one).returncode:
        return None
    with open(os.path.join(one, "impl.o"), "rb") as f:
        return f.read()


# ---------------- running

addresses = 12 << 30                      # what a program may take; with sanitizers: no bound


def limits(seconds):
    """What a program with a defect may take. It may do anything, so it does not do it as root, who
    could replace /dev/null or end other programs."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    os.setsid()
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def waited(p, seconds):
    """Waits for a process so long, and ends what it started: (its status, or None, the processor
    time that it took with what it waited for)."""
    end, status = time.monotonic() + seconds, None
    while status is None and time.monotonic() < end:
        pid, word, use = os.wait4(p.pid, os.WNOHANG)
        if pid:
            status = os.waitstatus_to_exitcode(word)
        else:
            time.sleep(0.005)
    try:
        os.killpg(p.pid, 9)
    except OSError:
        pass
    if status is None:
        use = os.wait4(p.pid, 0)[2]
    p.returncode = -9 if status is None else status
    return status, use.ru_utime + use.ru_stime


def run(unit, place, seconds, **variables):
    """Runs a unit, (test program) or (test program, one of its tests): (did it pass, why not, its
    processor time). It may take so many seconds of a processor, and where it waits for ever, four
    times as many."""
    temp, log = os.path.join(place, "tmp"), os.path.join(place, "log")
    env = dict(os.environ, TMPDIR=temp, HOME=temp, **variables)
    env.setdefault("FLUX_NUM_THREADS", "2")
    with open(log, "w") as f:
        p = subprocess.Popen([os.path.join(TREE, "bin", unit[0]), *unit[1:]], cwd=place, env=env,
                             stdout=f, stderr=f, stdin=subprocess.DEVNULL,
                             preexec_fn=lambda: limits(seconds))
    status, took = waited(p, 4 * seconds + 20)
    with open(log, errors="replace") as f:
        said = f.read()
    failed = re.findall(r'^FAILED  (\w+)', said, re.M)
    counted = re.search(r'^\d+ passed, 0 failed, \d+ skipped$', said, re.M)
    if status == 0 and counted:
        return True, "", took
    if status in (None, -signal.SIGXCPU, -signal.SIGKILL):
        return False, "time-out", took
    ended = "signal %d" % -status if status < 0 else "status %d" % status
    return False, failed[0] if failed else ended, took


def make_place(i):
    """A folder to run in: tests write files of the same names, so each job has its own."""
    place = os.path.join(WORK, "place%d" % i)
    for name in ("build", "tmp"):
        os.makedirs(os.path.join(place, name))
    for name in HEADERS + ("examples", "flux.h"):
        os.symlink(os.path.join(ROOT, name), os.path.join(place, name))
    os.symlink(os.path.join(TREE, "tests"), os.path.join(place, "tests"))
    if os.getuid() == 0:
        for folder in (place, os.path.join(place, "build"), os.path.join(place, "tmp")):
            os.chown(folder, NOBODY, NOBODY)
    return place


def tests_of(name):
    with open(os.path.join(TREE, "tests", name + ".c")) as f:
        return re.findall(r'^TEST\((\w+)\)', f.read(), re.M)


def first_run(unit, count, places):
    """A unit without a defect: (did it pass, how long it takes, what it comes to)."""
    place = places.get()
    path = os.path.join(place, "met")
    with open(path, "wb") as f:
        f.write(bytes(count))
    os.chmod(path, 0o666)
    passed, why, took = run(unit, place, 600, FLUX_MUTANTS_MET=path)
    with open(path, "rb") as f:
        met = f.read()
    places.put(place)
    if not passed:
        print("left out: %s fails without a defect: %s" % (" ".join(unit), why), flush=True)
    return passed, took, met


def first_runs(programs, count, pool, places):
    """{unit: (time, what it comes to)} of all units that pass. Units are programs, or where these
    take long, their tests, so that few must run for a defect."""
    known, asked = {}, [(name,) for name in programs]
    while asked:
        runs = zip(asked, pool.map(lambda u: first_run(u, count, places), asked))
        asked = []
        for unit, (passed, took, met) in runs:
            parts = tests_of(unit[0]) if passed and len(unit) == 1 and took > LONG else []
            asked += [(unit[0], t) for t in parts]
            if passed and not parts:
                known[unit] = took, met
    return known


def judge(k, units, times, seen, places):
    """(k, which test sees the defect, or None). The units that have seen most for their time so far
    come first; seen: how many each has."""
    place = places.get()
    try:
        for u in sorted(units, key=lambda u: (times[u] + 0.1) / (seen[u] + 1)):
            limit, awake = int(5 * times[u] + 5), str(k)
            good, why, _ = run(u, place, limit, FLUX_MUTANT=awake)
            # a test that fails now and then by itself has not seen anything: once more
            if not good and why != "time-out":
                good = run(u, place, limit, FLUX_MUTANT=awake)[0]
            if not good:
                seen[u] += 1
                return k, "%s (%s)" % (u[0], why)
        return k, None
    finally:
        places.put(place)


def show(k, m, verdict):
    print("%4d  %-16s flux.h:%d  %s\n          %s\n          %s" %
          (k, verdict, m.line + 1, m.kind, m.was.strip(), m.alone.strip()), flush=True)


def prepare(lines, mutants):
    """Compiles everything: the defects that compile, and the test programs."""
    shutil.rmtree(WORK, ignore_errors=True)
    for name in ("bin", "opened"):
        os.makedirs(os.path.join(TREE, name))
    for name in ("tests", "src", "examples"):      # tests include rooms and examples
        shutil.copytree(name, os.path.join(TREE, name))
    for name in HEADERS:
        shutil.copy(name, TREE)
    runtime = RUNTIME.replace("COUNT", str(max(len(mutants), 1)))
    for name, text in (("switch.h", SWITCH), ("runtime.c", runtime)):
        with open(os.path.join(TREE, name), "w") as f:
            f.write(text)
    alive = compile_all(lines, mutants, set(range(len(mutants))), [])
    write_opened("declared")
    command = CC + ["-O1", "-D_DEFAULT_SOURCE", "-c", "runtime.c", "-o", "runtime.o"]
    if call(command, TREE).returncode:
        sys.exit("mutate: runtime.c does not compile")
    return alive


def judge_all(pool, places, known, mutants, chosen):
    """Runs the programs with each of the chosen defects; the numbers of those that survive."""
    times = {u: took for u, (took, _) in known.items()}
    seen, survivors = collections.Counter(), []
    runs = [pool.submit(judge, k, [u for u, (_, met) in known.items() if met[k]], times, seen,
                        places) for k in sorted(chosen)]
    for k, by in (f.result() for f in concurrent.futures.as_completed(runs)):
        show(k, mutants[k], "killed by " + by if by else "survived so far")
        survivors += [] if by else [k]
    return survivors


def sanitize(pool, places, lines, mutants, survivors, known):
    """Compiles the defects that survived with sanitizers, and runs the programs that come to them:
    the numbers of those that survive that, too."""
    global addresses
    programs = sorted({u[0] for u, (_, met) in known.items() if any(met[k] for k in survivors)})
    with open(os.path.join(TREE, "empty.c"), "w") as f:
        f.write("int main(void) { return 0; }\n")
    test = call(CC + SANITIZE + ["empty.c", "-o", "empty"], TREE)
    if test.returncode or call(["./empty"], TREE).returncode:
        print("no sanitizers here")
        return survivors
    addresses = resource.RLIM_INFINITY
    print("with sanitizers: %d defects, %d programs" % (len(survivors), len(programs)), flush=True)
    compile_all(lines, mutants, set(survivors), SANITIZE)
    write_opened("declared")
    programs = [t for t in pool.map(lambda t: build(t, SANITIZE), programs) if t]
    known = first_runs(programs, len(mutants), pool, places)
    return judge_all(pool, places, known, mutants, survivors)


def main():
    seed, n = int(os.environ.get("SEED", 1)), int(os.environ.get("N", 100))
    jobs = int(os.environ.get("JOBS", os.cpu_count() or 2))
    only = [int(x) for x in os.environ["RANGE"].split("-")] if os.environ.get("RANGE") else None
    with open("flux.h") as f:
        lines = f.readlines()
    mutants, of = draw(lines, seed, n, only)
    if "LIST" in os.environ:
        for k, m in enumerate(mutants):
            show(k, m, "")
        return
    print("%d defects, seed %d, of %d lines; compiling" % (len(mutants), seed, of), flush=True)
    alive = prepare(lines, mutants)
    names = sorted(os.path.basename(f)[:-2] for f in glob.glob("tests/test_*.c"))
    places, total = queue.Queue(), collections.Counter()
    for i in range(jobs):
        places.put(make_place(i))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        names = [t for t in names if t not in LEFT_OUT]
        tests = [t for t in pool.map(lambda t: build(t, []), names) if t]
        known = first_runs(tests, len(mutants), pool, places)
        print("%d test programs, in %d units, take %.0f s" %
              (len(tests), len(known), sum(took for took, _ in known.values())), flush=True)
        come_to = {k for k in alive if any(met[k] for _, met in known.values())}
        for k, m in enumerate(mutants):
            if k not in come_to:
                verdict = "not reached" if k in alive else "does not compile"
                show(k, m, verdict)
                total[verdict] += 1
        survivors = judge_all(pool, places, known, mutants, come_to)
        if survivors:
            survivors = sanitize(pool, places, lines, mutants, survivors, known)
        total["killed"] = len(come_to) - len(survivors)
        original = object_of(lines, "original") if survivors else None
        alone = pool.map(lambda k: object_of(lines, k, mutants[k]), sorted(survivors))
        for k, made in zip(sorted(survivors), alone):
            verdict = "equivalent" if made == original else "SURVIVED"
            show(k, mutants[k], verdict)
            total[verdict] += 1
    print("seed %d: %d killed, %d survived, %d equivalent, %d not reached, %d do not compile" %
          (seed, total["killed"], total["SURVIVED"], total["equivalent"], total["not reached"],
           total["does not compile"]))
    judged = total["killed"] + total["SURVIVED"]
    if judged:
        print("seen: %.1f %% of what is reached and differs" % (100.0 * total["killed"] / judged))


main()
