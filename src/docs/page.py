"""page.py - makes the page of `make docs`: python3 src/docs/page.py >build/docs.html

Nothing is written twice: the manual is the first comment of src/flux.h, the chapters are the comments and declarations of
src/api/*.h, lines of use are the blocks of tests/test_uses.c, and rows of the cheat sheet those of tests/test_cheat_sheet.c. A
card of the page is a comment with the declarations under it; what a macro calls (flux_dense_with) stands on the macro's card.
`--names` prints each public name, whether it has a sentence, a line of use, and its comment where an editor shows it (before a
function, inside a macro), for tests/check_docs.sh."""
import html
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


# ---------------- declarations

class Decl:
    """A function, macro, struct, enum or type: what it is called, its text, and the comment beside it."""

    def __init__(self, kind, names, text):
        self.kind, self.names, self.text, self.own = kind, names, text, ""


class Card:
    def __init__(self, comment):
        self.comment, self.decls = comment, []


TOKEN = re.compile(r"""
    (?P<comment>/\*.*?\*/)
  | (?P<define>^\#[ ]*define[ ](?P<macro>\w+)(?P<params>\([^)]*\))?(?P<body>(?:/\*.*?\*/|\\\n|[^\n])*))
  | (?P<cond>^\#[^\n]*(?:\\\n[^\n]*)*)
  | (?P<api>^FLUX_API[ ](?P<returns>[^;(]*?[ *])(?P<fn>\w+)\((?:[^;]*)\);)
  | (?P<type>^(?:typedef|enum|struct)[ ](?:[^;{]|\{(?:/\*.*?\*/|[^{}])*\})*;)
  | (?P<blank>\n[ ]*\n)
""", re.X | re.M | re.S)


def plain(comment):
    """A comment's lines without its signs, its first line as far to the left as the others."""
    body = re.sub(r"^/\*|\s*\*/$", "", comment).split("\n")
    deep = [len(line) - len(line.lstrip()) for line in body[1:] if line.strip()]
    cut = min(deep) if deep else 0
    return "\n".join([body[0].strip()] + [line[cut:].rstrip() for line in body[1:]]).strip("\n")


def for_c(text):
    """Without the branches for C++."""
    out, skipping, depth = [], 0, 0
    for line in text.split("\n"):
        if re.match(r"# *if", line):
            depth += 1
            if re.match(r"# *if.*\b__cplusplus\b", line) and "!" not in line and "ifndef" not in line and not skipping:
                skipping = depth
        if re.match(r"# *e(lse|lif|ndif)", line) and skipping == depth:
            skipping = 0
        if re.match(r"# *endif", line):
            depth -= 1
        if not skipping:
            out.append(line)
    return "\n".join(out)


def type_names(text):
    bare = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    names = re.findall(r"\(\*(flux_\w+)\)\(", bare)[:1] or re.findall(r"(\w+)\s*;$", bare)
    constants = []
    if "enum" in bare:
        constants = re.findall(r"\b(FLUX_[A-Z]\w*)\b", bare[bare.index("{"):])
    if bare.startswith("struct"):
        names = re.findall(r"^struct (\w+)", bare)
    return [n for n in names if n.startswith("flux_") and not n.startswith("flux__")] + constants


def sections_of(path):
    """The sections of a chapter: [title, introduction, cards]."""
    text, found, card, last_end, last = for_c(read(path)), [], None, -1, None
    for m in TOKEN.finditer(text):
        if m["comment"]:
            title = re.match(r"/\* -{20,} ([^\n*]*)", m[0])
            if title:
                found.append([title[1].strip(), plain("/*" + m[0][m[0].index("\n"):] if "\n" in m[0] else ""), []])
                card = None
            elif last is not None and "\n" not in text[last_end:m.start()]:
                last.own = plain(m[0])
            else:
                if not found:
                    found.append(["versions and limits", "", []])
                card = Card(plain(m[0]))
                found[-1][2].append(card)
                last = None
            continue
        if m["blank"]:
            card, last = None, None
            continue
        if m["cond"]:
            continue
        decl = inside = None
        if m["define"] and not m["macro"].startswith(("FLUX__", "flux__")) and m["macro"] != "FLUX_API":
            decl = Decl("macro", [m["macro"]], m["define"])
            decl.params, decl.body = m["params"] or "", m["body"]
            inside = re.match(r"\s*(?:\\\n)?\s*(/\*.*?\*/)(.*)", decl.body, re.S)
            if inside:                    # a card of its own
                decl.body, card = inside[2], Card(plain(inside[1]))
                if found:
                    found[-1][2].append(card)
            beside = re.search(r"\s*(/\*.*\*/)\s*$", decl.body, re.S)
            if beside:
                decl.body, decl.own = decl.body[:beside.start()], plain(beside[1])
        elif m["api"] and not m["fn"].startswith("flux__"):
            decl = Decl("function", [m["fn"]], m["api"][len("FLUX_API "):])
            decl.returns = m["returns"].strip() + ("" if m["returns"].endswith("*") else " ")
        elif m["type"] and not re.search(r"\b[Ff][Ll][Uu][Xx]__\w+;?$", m["type"]):
            decl = Decl("type", type_names(m["type"]), m["type"])
        if decl is None or not decl.names:
            continue
        if not found:
            found.append(["versions and limits", "", []])
        if card is None:
            card = Card("")
            found[-1][2].append(card)
        decl.hover = bool(inside) if decl.kind == "macro" else not card.decls and bool(card.comment)
        card.decls.append(decl)
        last, last_end = decl, m.end()
        if inside:
            card = None
    return found


CHAPTERS = [c for c in re.findall(r'#include "(api/\w+\.h)"', read("src/flux.h")) if c != "api/aliases.h"]   # old names
chapters, macros, called_card = [], {}, {}
for name in CHAPTERS:
    parts = sections_of("src/" + name)
    if name in ("api/calls.h", "api/dispatch.h", "api/macros.h"):   # how the calls are made: their macros alone
        for c in (c for s in parts for c in s[2]):
            for d in (d for d in c.decls if d.kind == "macro"):
                macros.setdefault(d.names[0], d)
                called_card.setdefault(d.names[0], c.comment)
    else:
        chapters += parts
losses = [m for m in re.findall(r"^    X\((\w+), (\w+)\) */\* (.*?) \*/", read("src/api/losses.h"), re.M)]
for section in chapters:
    if section[0] == "losses":
        for loss, per, formula in losses:
            card = Card(f"Per {per.lower()}: {formula}")
            decl = Decl("function", ["flux_" + loss], f"flux_tensor *flux_{loss}(flux_tensor *yhat, flux_tensor *y);")
            decl.returns, decl.hover = "flux_tensor *", True
            behind = Decl("function", [f"flux_{loss}_with"], f"flux_tensor *flux_{loss}_with(flux_loss_opts o);")
            behind.returns, behind.hover = "flux_tensor *", True
            card.decls = [decl, behind]
            section[2].append(card)

cards = [c for s in chapters for c in s[2]]
by_function = {d.names[0]: d for c in cards for d in c.decls if d.kind == "function"}
for c in cards:                           # flux_train is a function and a macro
    for d in [d for d in c.decls if d.kind == "macro" and d.names[0] in by_function]:
        by_function[d.names[0]].call = d
        c.decls.remove(d)
card_of = {n: c for c in cards for d in c.decls for n in d.names}
decl_of = {n: d for c in cards for d in c.decls for n in d.names}
functions = {n for n, d in decl_of.items() if d.kind == "function"}
structs = {n: d for n, d in decl_of.items() if d.kind == "type" and n.endswith("_opts")}
KINDS = ("with", "tensor", "layer", "loader", "state", "grads", "object", "cpp")

# Macros that stand elsewhere: those of a function's name, or of what no chapter declares.
for name, macro in macros.items():
    if name in decl_of:
        decl = decl_of[name]
        decl.call, said = macro, called_card.get(name)
        if said:                              # a card of its own
            home = card_of[name]
            section = next(s for s in chapters if home in s[2])
            card = Card(said)
            home.decls.remove(decl)
            card.decls = [decl]
            section[2].insert(section[2].index(getattr(home, "after", home)) + 1, card)
            card_of[name], home.after = card, card
            if not home.decls and home.comment:
                card.comment = home.comment if home.comment.startswith(said[:-1]) else said + "\n\n" + home.comment
                section[2].remove(home)
        continue
    behind = [f"{name}_{kind}" for kind in KINDS if f"{name}_{kind}" in card_of]
    home = card_of.get(behind[0]) if behind else next(
        (c for c in cards if re.search(rf"\b{name}\b", c.comment)), None)
    if home is None:
        continue
    section, card = next(s for s in chapters if home in s[2]), Card(called_card.get(name, ""))
    card.decls = [macro]
    section[2].insert(section[2].index(home), card)
    card_of[name], decl_of[name] = card, macro

HELPERS = dict(re.findall(r"^#define (FLUX__\w+)\([^)]*\) *((?:\\\n|[^\n])*)", read("src/api/distributed.h"), re.M))


def called_by(decl):
    """The public functions and the struct of options that a macro leads to."""
    macro = getattr(decl, "call", decl)
    if getattr(macro, "kind", "") != "macro":
        return []
    body = macro.body
    for helper in re.findall(r"\bFLUX__\w+", body):
        body += HELPERS.get(helper, "") if helper.startswith(("FLUX__REDUCE_TO", "FLUX__BROADCAST", "FLUX__DISTRIBUTED_RULE")) else ""
    found = [n for n in re.findall(r"\bflux_\w+", body) if n in decl_of and n not in decl.names]
    found += [n + "_opts" for n in re.findall(r"(\bflux_\w+)_opts\b", body) if n + "_opts" in structs]
    found += [f"flux_{kind}_opts" for kind in re.findall(r"FLUX__OR_LAYER\(\w+, (\w+)", body)]
    found += [f"{decl.names[0]}_{kind}" for kind in KINDS if f"{decl.names[0]}_{kind}" in functions]
    if "FLUX__OR_LAYER" in body:
        found += [decl.names[0] + "_with", "flux_conv_opts" if ", conv," in body else "flux_pool_opts"]
    if "FLUX__RULE" in body:
        found.append("flux_rule_with")
    if "FLUX__REDUCE" in body or "FLUX__ACT" in body or "FLUX__LOSS" in body or "FLUX__RECURRENT" in body:
        found += [n for n in ("flux_act_opts",) if "FLUX__ACT" in body] + [n for n in ("flux_recurrent_opts",) if "RECURRENT" in body]
    return list(dict.fromkeys(found))


cards = [c for s in chapters for c in s[2]]
behind_of = {}                            # flux_dense_with: flux_dense
for c in list(cards):
    for d in list(c.decls):
        for n in called_by(d):
            target = decl_of[n]
            if n in macros or n in ("flux_transpose", "flux_from", "flux_rule_with", "flux_rule_opts", "flux_loss_opts",
                                    "flux_reduce_opts"):
                continue
            if behind_of.setdefault(n, d.names[0]) != d.names[0]:
                continue                  # it stands on the card of another
            home, here = card_of[n], card_of[d.names[0]]
            if target.kind == "type" or home is here:
                if home is here:
                    continue
            mover, to = (target, here)
            if not (here.comment or d.own) and (home.comment or target.own):
                mover, to = d, home
            at = card_of[mover.names[0]]
            if mover in at.decls and at is not to:
                at.decls.remove(mover)
                to.decls.append(mover) if mover is target else to.decls.insert(0, mover)
                for each in mover.names:
                    card_of[each] = to
                at.left = getattr(at, "left", None) or mover.names[0]
                if not at.decls and at.comment and not at.comment.startswith("See flux_"):
                    to = card_of[at.left]
                    to.comment = to.comment + "\n\n" + at.comment if to.comment else at.comment
                if not at.decls:
                    at.comment = ""
for s in chapters:
    s[2] = [c for c in s[2] if c.comment or c.decls]

# ---------------- lines of use and the cheat sheet

CHECK = re.compile(r"^(SHAPE|VALUES|IS|CHECK_STR)\((.*)\);$")


def statements(line):
    """A statement a piece: cut behind ; and behind a block that something follows."""
    depth, start = 0, 0
    for i, sign in enumerate(line):
        depth += (sign in "({") - (sign in ")}")
        if depth == 0 and (sign == ";" or sign == "}" and re.match(r"\} [A-Z]+\(", line[i:])):
            yield line[start:i + 1].strip()
            start = i + 1
    yield line[start:].strip()


def said_of(check):
    """What a check says, as a comment: SHAPE(y, 2, 3) that y is 2 x 3."""
    cut = next(i for i, sign in enumerate(check[2]) if sign == "," and check[2][:i].count("(") == check[2][:i].count(")"))
    if check[1] == "IS":
        cut = check[2].rindex(", ")
    what, rest = check[2][:cut], check[2][cut + 1:].strip()
    if check[1] == "CHECK_STR":
        return f"// {what} is {rest}"
    if check[1] != "IS":
        rest = (" x " if check[1] == "SHAPE" else " ").join(part.strip() for part in rest.split(","))
        if re.match(r"^\w+$", what):
            return f"// {what}: {rest}"
    return f"{what};  // {rest}"


def shown(code, checks=True):
    """A block's lines, in which the checks have become comments, or are left out."""
    lines = []
    for piece in (piece for line in code.split("\n") for piece in statements(line)):
        check = CHECK.match(piece)
        if not piece or check and not checks:
            continue
        made = said_of(check) if check else piece
        if made.startswith("// ") and lines and "//" not in lines[-1] and len(lines[-1]) + len(made) < 96:
            lines[-1] += "  " + made
        elif made.startswith("// ") and lines and lines[-1].rsplit("//", 1)[-1].split(":")[0] == made[2:].split(":")[0]:
            lines[-1] += "; " + made.split(": ", 1)[1]
        else:
            lines.append(made)
    return "\n".join(lines)


def blocks(path, word):
    """The blocks of a test file: the words in the brackets, the code, and the lines given before the first of their test."""
    text, at, given = read(path), 0, ""
    for test in re.finditer(r"^TEST\(\w+\) \{\n(.*?)^\}", text, re.M | re.S):
        body = test[1]
        first = re.search(rf"^    {word}\(", body, re.M)
        given = re.sub(r"^    ", "", body[:first.start()], flags=re.M).strip() if first else ""
        for m in re.finditer(rf"^    {word}\((.*?)\) \{{(?: ([^\n]*) \}}|\n(.*?)^    \}})$", body, re.M | re.S):
            yield m[1], (m[2] if m[2] is not None else m[3]), given


uses, givens = {}, {}
for names, code, given in blocks("tests/test_uses.c", "USE"):
    for n in names.split(", "):
        uses.setdefault(n, []).append(shown(code))
        givens[n] = given
OWN = {n: m for n, m in re.findall(r"((?:FLUX_OP|FLUX_LAYER|FLUX_LAYER_TEXT|FLUX_LAYER_TRAITS))(\([^;\n]*\)+;?)$",
                                   read("tests/test_uses.c"), re.M)}
for n, text in OWN.items():
    uses.setdefault(n, []).insert(0, n + text)
rows = [(*re.findall(r'"((?:[^"\\]|\\.)*)"', strings), shown(code, checks=False))
        for strings, code, _ in blocks("tests/test_cheat_sheet.c", "LIKE")]

# ---------------- words


def first_sentence(text):
    text = " ".join(text.split("\n\n")[0].split())
    m = re.match(r".*?[.](?= [A-Z]| *$)", text)
    return m[0] if m else text.rstrip(":;")


def sentence(name):
    d, c = decl_of[name], card_of[name]
    return first_sentence(d.own or c.comment or "")


public = sorted(n for n, d in decl_of.items() if d.kind in ("function", "macro"))
indexed = sorted(decl_of, key=lambda n: n.lower())


def has_use(name):
    return name in uses or behind_of.get(name) in uses


def hovers(name):
    d = decl_of[name]
    macro = getattr(d, "call", d)
    return name in behind_of or macro.hover or macro.kind == "macro" and not macro.params and name.isupper()


if "--names" in sys.argv:
    for n in public:
        print(n, "sentence" if sentence(n) else "-", "use" if has_use(n) else "-", "hover" if hovers(n) else "-")
    sys.exit()

# ---------------- HTML

WORD = re.compile(r"\b(?:flux|FLUX)_\w+\b")
CODE = re.compile(r"(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>\"(?:[^\"\\]|\\.)*\")|(?P<name>\b(?:flux|FLUX)_\w+)"
                  r"|(?P<word>\b(?:const|void|int|bool|char|float|double|size_t|u?int\d+_t|static|struct|enum|typedef|return|"
                  r"for|if|while|switch|else)\b)|(?P<number>(?<![\w.])-?\d[\w.]*)|(?P<directive>^\s*\#\w+)", re.S | re.M)


def link(name, here=""):
    return f'<a href="#{name}">{name}</a>' if name in card_of and name != here else html.escape(name)


def code(text, here=""):
    out, at = [], 0
    for m in CODE.finditer(text):
        out.append(html.escape(text[at:m.start()], quote=False))
        kind = m.lastgroup
        out.append(link(m[0], here) if kind == "name" else f'<i class="{kind[0]}">{html.escape(m[0], quote=False)}</i>')
        at = m.end()
    return "".join(out) + html.escape(text[at:], quote=False)


def words(text):
    """A paragraph, in which names are links, and calls and options are set as code."""
    text = re.sub(r"\s*\n\s*", " ", text)
    out, at = [], 0
    for m in re.finditer(r"`[^`]+`|(?:\b(?:flux|FLUX)_\w+)(?:\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))?|(?<![\w.])\.[a-z]\w+"
                         r"(?: = [\w.{}\" ]*[\w}\"])?|\B-D\w+", text):
        out.append(html.escape(text[at:m.start()], quote=False))
        out.append(f"<code>{code(m[0].strip('`'))}</code>")
        at = m.end()
    return "".join(out) + html.escape(text[at:], quote=False)


def prose(text, entries=False):
    """Paragraphs, numbered and dashed lists, and what is indented or set in columns as it stands."""
    out, lines, i = [], text.split("\n"), 0

    def stands(line):
        return bool(line.strip()) and (line.startswith("    ") or re.search(r"\S   +\S", line) is not None)
    while i < len(lines):
        line = lines[i]
        if not line.strip():
            i += 1
        elif stands(line):
            start = i
            while i < len(lines) and (stands(lines[i]) or lines[i].startswith("  ")
                                      or (not lines[i].strip() and i + 1 < len(lines) and stands(lines[i + 1]))):
                i += 1
            block = lines[start:i]
            cut = min(len(b) - len(b.lstrip()) for b in block if b.strip())
            out.append("<pre>" + code("\n".join(b[cut:] for b in block)) + "</pre>")
        else:
            item = re.match(r"(\d\.|-) (.*)", line)
            start, i = i, i + 1
            while i < len(lines) and lines[i].strip() and not re.match(r"(\d\.|-) ", lines[i]) and not (
                    stands(lines[i]) and not (item and not lines[i].startswith("      "))):
                i += 1
            body = "\n".join(lines[start:i])
            tag = "ol" if item and item[1] != "-" else "ul"
            if item:
                body = body[len(item[1]) + 1:]
                if out and out[-1] == f"</{tag}>":
                    out.pop()
                else:
                    out.append(f"<{tag}>")
                out += [f"<li>{words(body)}</li>", f"</{tag}>"]
            else:
                out.append(f"<p>{words(body)}</p>")
    return "\n".join(out)


def ident(title):
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def struct_text(text):
    text = re.sub(r"\n *FLUX__DUMMY|\n *flux__marked [^;]*;|FLUX__ZERO", "", text)
    text = re.sub(r" +([,;])", r"\1", text)
    text = re.sub(r"flux__(double|int64|int|uint64|switch)(2?)\b",
                  lambda m: {"int64": "int64_t", "uint64": "uint64_t", "switch": "flux_switch"}.get(m[1], m[1]) + m[2], text)
    # comments behind fields in one column, and their further lines under them
    lines = text.split("\n")
    behind = [re.match(r"(.*\S) +(/\*.*)", line) for line in lines]
    column = min(max([len(m[1]) for m in behind if m] + [0]) + 2, 44)
    for i, m in enumerate(behind):
        if m:
            lines[i] = m[1].ljust(column - 1) + " " + m[2]
        elif re.match(r" {20}", lines[i]):
            lines[i] = " " * (column + 3) + lines[i].strip()
    return "\n".join(lines)


def fields(struct):
    bare = re.sub(r"/\*.*?\*/|FLUX__ZERO|flux__marked [^;]*;|\([^()]*\)(?=\s*;)", "", structs[struct].text, flags=re.S)
    return [re.sub(r"\W.*", "", f.strip().split()[-1].lstrip("*(")) for line in bare[bare.index("{") + 1:bare.rindex("}")]
            .replace("FLUX__DUMMY", "").split(";") if line.strip() for f in line.split(",")]


def signature(d):
    """How a call is written: a macro's from what it calls."""
    macro = getattr(d, "call", d)
    if d.kind == "type":
        return struct_text(d.text)
    if macro.kind != "macro" or (d.kind == "function" and "OF_TWO" in macro.body):
        return d.text.rstrip(";") + (";  // a and b may be numbers" if macro is not d else ";")
    name, body = d.names[0], macro.body
    if not macro.params:
        return f"#define {name} {body.strip()}" if len(body) < 50 and "FLUX__" not in body else name
    called = next((n for n in re.findall(r"\bflux_\w+", body) if n in functions), None)
    called = called or next((f"{name}_{k}" for k in KINDS if f"{name}_{k}" in functions), None)
    returns = decl_of[called].returns if called else ""
    if "FLUX__RULE" in body:
        returns = "flux_rule "
    if "FLUX__SAME_TYPE" in body or name == "flux_synchronize":
        returns = "T *"
    if name.startswith("FLUX_") and name not in ("FLUX_SHAPE",):
        returns = ""
    opts = next((o for o in re.findall(r"\bflux_\w+_opts\b", body + (decl_of[called].text if "OR_LAYER" in body else "")) if o in structs), None)
    rest = "..."
    if "FLUX__RULE" in body:
        rest = "options..."
    elif "FLUX__LOSS" in body:
        rest = "yhat, y, options..."
    elif "FLUX__ACT" in body:
        rest = "x, options..."
    elif "FLUX__RECURRENT" in body:
        rest = ", ".join(fields("flux_recurrent_opts"))
    elif re.search(r"FLUX__REDUCE\b", body):
        rest = "x, dims..."
    elif opts:
        rest = ", ".join(fields(opts))
    else:
        for sign, word in (("FLUX_SHAPE(__VA", "dims..."), ("FLUX__TENSORS", "tensors..."), ("FLUX__LAYERS", "layers..."),
                           ("FLUX__OBJECTS", "objects..."), ("FLUX__DOUBLES", "numbers..."), ("FLUX__ARRAY", "values...")):
            if sign in body:
                rest = word
                break
    return f"{returns}{name}{macro.params.replace('...', rest)};" if returns else f"{name}{macro.params.replace('...', rest)}"


ids = set()


def anchor(name):
    """An id, once: flux_layer is a type and a struct."""
    if name in ids:
        return ""
    ids.add(name)
    return f'<b id="{name}"></b>'


def named(text, names):
    """A signature with the name it declares set bold."""
    return re.sub(rf"(?<![\w#>])({'|'.join(names)})\b(?![^<]*>)", r"<strong>\1</strong>", text, count=1)


def card_html(c):
    names = [n for d in c.decls for n in d.names]
    shown_first = sorted(c.decls, key=lambda d: (d.names[0] in behind_of, d.kind == "type" and d.names[0].endswith("_opts")))
    first = names[0] if names and names[0] not in ids else ""
    ids.add(first)
    out = [f'<section class=card id="{first}">' if first else "<section class=card>"]
    options = [d for d in c.decls if d.names[0] in structs and len(c.decls) > 1]
    if names:
        lines = []
        for d in shown_first:
            if d.names[0] in behind_of and d.kind == "function" or d in options:
                continue
            anchors = "".join(map(anchor, d.names))
            own = f'  <i class="c">// {words(d.own)}</i>' if d.own and d.own != c.comment else ""
            lines.append(anchors + named(code(signature(d), d.names[0]), d.names) + own)
        out.append("<pre class=sig>" + "\n".join(lines) + "</pre>")
    if c.comment:
        out.append(prose(c.comment))
    for d in options:
        out.append(f"<pre class=sig>{anchor(d.names[0])}{code(struct_text(d.text), d.names[0])}</pre>")
    used = list(dict.fromkeys(u for n in names for u in uses.get(n, [])))
    if used:
        out.append("<pre class=use>" + "\n".join(code(u) for u in used) + "</pre>")
    behind = [d for d in c.decls if d.names[0] in behind_of and d.kind == "function"]
    if behind:
        out.append("<details><summary>the functions behind it</summary><pre>" + "\n".join(
            anchor(d.names[0]) + code(d.text, d.names[0]) for d in behind) + "</pre></details>")
    out.append("</section>")
    return "\n".join(out)


def manual_sections():
    text = read("src/flux.h")
    text = text[2:text.index("CONTENTS")]
    lines = [line[3:] if line.startswith("   ") else line.strip() for line in text.split("\n")]
    title, body, found = "flux.h", [], []
    for line in lines[1:]:
        if re.match(r"^[A-Z][A-Z ,#']{3,}$", line):
            found.append((title, "\n".join(body)))
            title, body = line, []
        else:
            body.append(line)
    found.append((title, "\n".join(body)))
    return found


def main():
    version = re.search(r'FLUX_VERSION_STRING "([^"]*)"', read("src/api/types.h"))[1]
    parts, contents = [], []
    contents.append('<li class=head>Manual')
    contents.append("<ul>")
    for title, body in manual_sections():
        name = title if title == "flux.h" else title.capitalize().replace("gpus", "GPUs").replace("Gpus", "GPUs")
        name = name.replace("#include", "<code>#include</code>")
        at = "manual-" + ident(title)
        parts.append(f'<section id="{at}" class=chapter><h2>{"The manual" if title == "flux.h" else name}</h2>{prose(body)}</section>')
        contents.append(f'<li><a href="#{at}">{"A first program" if title == "flux.h" else name}</a></li>')
    contents.append("</ul></li>")
    table = "\n".join(f"<tr><td><code>{html.escape(t)}</code></td><td><code>{html.escape(f)}</code></td>"
                      f"<td><code>{code(c)}</code></td></tr>" for t, f, c in rows)
    contents.append('<li class=head><a href="#cheat-sheet">From PyTorch and Flux</a></li>')
    parts.append(f'<section id="cheat-sheet" class=chapter><h2>From PyTorch and Flux</h2><p>{len(rows)} phrases, each of which is compiled '
                 f'and run as a test. Dimensions are read backwards beside PyTorch: its 64 x 784 is 784 x 64 here.</p>'
                 f'<div class=wide><table><thead><tr><th>PyTorch<th>Flux<th>flux.h</tr></thead><tbody>{table}</tbody></table></div></section>')
    contents.append("<li class=head>Reference<ul>")
    for title, intro, some in chapters:
        name = title[0].upper() + title[1:]
        at = "chapter-" + ident(title)
        contents.append(f'<li><a href="#{at}">{name}</a></li>')
        given = next((givens[n] for c in some for d in c.decls for n in d.names if givens.get(n)), "")
        before = f"<p>Given in the lines of use:</p><pre class=use>{code(given)}</pre>" if given else ""
        parts.append(f'<section id="{at}" class=chapter><h2>{name}</h2>{prose(intro)}{before}'
                     + "\n".join(card_html(c) for c in some) + "</section>")
    contents.append('</ul></li><li class=head><a href="#index">Index</a></li>')
    entries = "\n".join(f'<li><a href="#{n}">{n}</a> <span>{html.escape(sentence(n))}</span></li>' for n in indexed)
    parts.append(f'<section id="index" class=chapter><h2>Index</h2><ol class=index>{entries}</ol></section>')
    style, script = read("src/docs/style.css"), read("src/docs/search.js")
    print(f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>flux.h {version}</title>
<style>
{style}</style></head><body>
<header><a class=name href="#manual-flux-h">flux.h</a> <small>{version}</small>
<div role=search hidden><input id=search type=search placeholder="Search ( / )" aria-label="Search names and sentences" autocomplete=off
spellcheck=false><ol id=found></ol></div><a class=to href="#contents">Contents</a></header>
<nav id=contents aria-label="Contents"><ul>{"".join(contents)}</ul></nav>
<main>
<h1>Deep learning in one C header</h1>
{chr(10).join(parts)}
</main>
<script>
{script}</script></body></html>""")


main()
