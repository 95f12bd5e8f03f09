/* Tables: csv with names, texts, missing fields, quotes, any separator and line end. What is expected stands beside each text; the
   largest one is compared with itself written by other rules. */
#ifndef _WIN32
#  define _POSIX_C_SOURCE 200809L
#  include <sys/stat.h>
#else
#  include <direct.h>
#endif
#include <stdlib.h>

#include "scarce.h"

static const char *put(const char *text, size_t n) {
    static const char path[] = "build/test_tables.csv";
#ifdef _WIN32
    _mkdir("build");
#else
    mkdir("build", 0777);
#endif
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(text, 1, n, f) != n) test_fail(__FILE__, __LINE__, "cannot write a temporary file");
    if (f) fclose(f);
    return path;
}
static const char *csv(const char *text) { return put(text, strlen(text)); }
static flux_table *table(const char *text) { return flux_load_table(csv(text)); }

static const char passengers[] = "name,sex,age,fare\n\"Braund, Mr. Owen\",male,22,7.25\n\"Cumings, \"\"Flo\"\"\",female,38,71.2833\n"
                                 "Heikkinen,female,,7.925\nAllen,male,35,NA\n";

TEST(names_texts_and_what_is_missing) {
    flux_table *t = table(passengers);
    CHECK(flux_table_rows(t) == 4 && flux_table_columns(t) == 4);
    CHECK_STR(flux_column_name(t, 0), "name");
    CHECK_STR(flux_column_name(t, 3), "fare");
    CHECK(flux_column_labels(t, "sex") == 2 && flux_column_labels(t, "name") == 4 && flux_column_labels(t, "age") == 0);
    CHECK_STR(flux_column_label(t, "sex", 0), "female");
    CHECK_STR(flux_column_label(t, "sex", 1), "male");
    CHECK_STR(flux_column_label(t, "name", 1), "Braund, Mr. Owen");
    CHECK_STR(flux_column_label(t, "name", 2), "Cumings, \"Flo\"");
    CHECK(flux_column_missing(t, "age") == 1 && flux_column_missing(t, "fare") == 1 && flux_column_missing(t, "sex") == 0);
    flux_tensor *x = flux_columns(t, "fare, sex,2");
    REQUIRE(flux_dim(x, 0) == 3 && flux_dim(x, 1) == 4 && flux_dtype_of(x) == FLUX_F32);
    const double sex[4] = { 1, 0, 0, 1 }, fare[2] = { 7.25, 71.2833f };
    CHECK_DATA(flux_select(x, 0, 1), sex, 0);
    CHECK_DATA(flux_slice(flux_select(x, 0, 0), 0, 0, 2), fare, 0);
    CHECK(flux_at(x, 0, 3) != flux_at(x, 0, 3) && flux_at(x, 2, 2) != flux_at(x, 2, 2) && flux_at(x, 2, 1) == 38);
    CHECK(flux_len(flux_columns(t, NULL)) == 16);
    t = flux_load_table(csv(passengers), .missing = -1);
    const double ages[4] = { 22, 38, -1, 35 };
    CHECK_DATA(flux_reshape(flux_columns(t, "age"), 4), ages, 0);
}

/* Fields of texts and of numbers that are missing, in each column and line: NaN or what is given, and counted. */
TEST(missing_anywhere) {
    enum { ROWS = 7, COLUMNS = 5 };
    for (int gap = 2; gap <= 5; gap++)
        for (int given = 0; given < 2; given++) {
            char text[600] = "a,b,c,d,e\n", field[20];
            int missing[COLUMNS] = { 0 }, labels[COLUMNS] = { 0 };
            double want[ROWS][COLUMNS];
            for (int r = 0; r < ROWS; r++)
                for (int c = 0; c < COLUMNS; c++) {
                    const bool none = (r * COLUMNS + c) % gap == 0, word = c % 2 == 0;
                    snprintf(field, sizeof field, none ? "" : word ? "t%d" : "%d", r);
                    strcat(strcat(text, field), c < COLUMNS - 1 ? "," : "\n");
                    want[r][c] = none ? -7 : word ? labels[c]++ : r;
                    missing[c] += none;
                }
            flux_table *t = given ? flux_load_table(csv(text), .missing = -7) : table(text);
            REQUIRE(flux_table_rows(t) == ROWS && flux_table_columns(t) == COLUMNS);
            flux_tensor *x = flux_columns(t, NULL);
            for (int c = 0; c < COLUMNS; c++) {
                const char name[2] = { (char)('a' + c), 0 };
                CHECK(flux_column_missing(t, name) == missing[c] && flux_column_labels(t, name) == labels[c]);
                for (int r = 0; r < ROWS; r++) {
                    const double v = flux_at(x, c, r);
                    CHECK(v == want[r][c] || (!given && want[r][c] == -7 && isnan(v)));
                }
            }
        }
}

/* A column of which one field is a text, wherever that stands, is one of texts: numbers in it have codes as well. */
TEST(numbers_among_texts) {
    enum { ROWS = 60 };
    for (int at = 0; at < ROWS; at += at < 3 || at > ROWS - 4 ? 1 : 11) {
        char text[2000] = "k,v\n", line[40];
        for (int i = 0; i < ROWS; i++) {
            if (i == at) snprintf(line, sizeof line, "x,%d\n", i);
            else snprintf(line, sizeof line, "%d,%d\n", i % 7, i);
            strcat(text, line);
        }
        flux_table *t = table(text);
        REQUIRE(t && flux_table_rows(t) == ROWS && flux_column_labels(t, "k") == 8 && flux_column_labels(t, "v") == 0);
        CHECK(flux_column_missing(t, "k") == 0);
        flux_tensor *x = flux_columns(t, "k, v");
        for (int i = 0; i < ROWS; i++) CHECK(flux_at(x, 0, i) == (i == at ? 7 : i % 7) && flux_at(x, 1, i) == i);
        CHECK_STR(flux_column_label(t, "k", 7), "x");
    }
}

/* The same table, written in every way. */
TEST(forms) {
    static const char *const same[] = {
        "a,b,c\n1,x,-3\n,y y,600\n", "a;b;c\r\n1;x;-3\r\n;y y;600", "a\tb\tc\n1\tx\t-3\n\ty y\t600\n", "a|b|c\r1|x|-3\r|y y|6e2\r",
        "\xef\xbb\xbf\"a\", \"b\" ,c\n 1 , x ,\"-3\"\n\n# not this\nNA,\"y y\",600\n", "# head\n\n a ,b,c\n1,\"x\",-3\nnull,y y,600.0\n"
    };
    const double first[2] = { 0, 1 }, last[2] = { -3, 600 };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        flux_table *t = table(same[i]);
        if (!CHECK(flux_table_rows(t) == 2 && flux_table_columns(t) == 3)) fprintf(stderr, "    form %d\n", (int)i);
        CHECK_STR(flux_column_name(t, 1), "b");
        CHECK_DATA(flux_reshape(flux_columns(t, "b"), 2), first, 0);
        CHECK_DATA(flux_reshape(flux_columns(t, "c"), 2), last, 0);
        CHECK_STR(flux_column_label(t, "b", 1), "y y");
        CHECK(flux_column_missing(t, "a") == 1);
    }
    flux_table *t = table("a b  c\n1   2 3\n  4 5 6  \n");
    const double all[6] = { 1, 2, 3, 4, 5, 6 };
    CHECK_DATA(flux_reshape(flux_columns(t, NULL), 6), all, 0);
    t = table("one\n1.5\n2.5\n");
    CHECK(flux_table_columns(t) == 1 && flux_table_rows(t) == 2);
    t = flux_load_table(csv("full name\nAda L\nKurt G\n"), .separator = ',');
    CHECK(flux_table_columns(t) == 1 && flux_column_labels(t, "full name") == 2);
    t = table("\"two\nlines\",b\n\"a\r\nb\",1\n\"c\n\",2\n");              /* line ends within quotes */
    CHECK(flux_table_rows(t) == 2 && flux_column_labels(t, "0") == 2);
    CHECK_STR(flux_column_name(t, 0), "two\nlines");
    CHECK_STR(flux_column_label(t, "0", 0), "a\r\nb");
    t = table("a,b\n#1,2\n3#,4\n");                                       /* a comment, and a text with a # */
    CHECK(flux_table_rows(t) == 1 && flux_column_labels(t, "a") == 1);
}

TEST(headings) {
    flux_table *t = table("1,2\n3,4\n");                                  /* numbers: no heading */
    CHECK(flux_table_rows(t) == 2);
    CHECK_STR(flux_column_name(t, 1), "1");
    t = flux_load_table(csv("1990,1991\n3,4\n"), .heading = true);
    CHECK(flux_table_rows(t) == 1);
    CHECK(flux_item(flux_columns(t, "1991")) == 4 && flux_item(flux_columns(t, "0")) == 3);
    t = flux_load_table(csv("x,y\nz,y\n"), .heading = false);
    CHECK(flux_table_rows(t) == 2 && flux_column_labels(t, "0") == 2 && flux_column_labels(t, "1") == 1);
    t = table("a,b\n");
    CHECK(flux_table_rows(t) == 0 && flux_table_columns(t) == 2 && flux_len(flux_columns(t, "b")) == 0);
    t = table("a,b\n1,\n2,\n");                                            /* nothing in it: a column of numbers */
    CHECK(flux_column_missing(t, "b") == 2 && flux_column_labels(t, "b") == 0);
    t = table("a\n1\n2\nx\n3\n");                                          /* one text: all are */
    CHECK(flux_column_labels(t, "a") == 4);
    const double codes[4] = { 0, 1, 3, 2 };
    CHECK_DATA(flux_reshape(flux_columns(t, "a"), 4), codes, 0);
    t = table("a\nnan\ninf\n\"\"\n\"NA\"\n");                             /* in quotes only nothing is missing */
    CHECK(flux_column_missing(t, "a") == 2 && flux_column_labels(t, "a") == 2);
}

TEST(table_errors) {
    CHECK_ERROR(flux_load_table(NULL), "load_table: argument path is NULL");
    CHECK_ERROR(flux_load_table("no/such.csv"), "load_table: cannot open no/such.csv");
    CHECK_ERROR(table(""), "it has no lines");
    CHECK_ERROR(table("a,b\n1,2\n3\n"), "line 3 has fewer fields than the first one, which has 2");
    CHECK_ERROR(table("a,b\n1,2,3\n"), "line 2 has more fields than the first one, which has 2");
    CHECK_ERROR(table("a,b\n\"x\"y,2\n"), "line 2: something follows a quoted field");
    CHECK_ERROR(table("a,b\n1,\"x\n\n"), "line 2: a quoted field does not end");
    CHECK_ERROR(table("a,b\n1,1e39\n"), "line 2, column 2: \"1e39\" is too large for float32");
    const double most[2] = { 3.4028234663852886e38, -3.4028234663852886e38 };
    CHECK_DATA(flux_columns(table("a\n3.4028235e38\n-3.4028235e38\n"), "a"), most, 0);
    CHECK_ERROR(table("a\n1\n-3.4028236e38\n"), "line 3, column 1: \"-3.4028236e38\" is too large for float32");
    CHECK_ERROR(flux_load_table(put("\xff\xfe" "a", 3)), "it is UTF-16 text: save it as UTF-8");
    flux_table *t = table(passengers);
    CHECK_ERROR(flux_columns(t, "age, height"), "columns: the table has no column \"height\"; it has 4: name, sex, age, fare");
    CHECK_ERROR(flux_columns(t, "4"), "the table has no column \"4\"");
    CHECK_ERROR(flux_columns(t, ""), "the table has no column \"\"");
    CHECK_ERROR(flux_column_label(t, "sex", 2), "column_label: sex has no label 2; it has 2");
    CHECK_ERROR(flux_column_label(t, "sex", -1), "column_label: sex has no label -1");
    CHECK_ERROR(flux_column_name(t, -1), "column_name: column -1 of a table of 4 columns");
    CHECK_ERROR(flux_column_name(t, 4), "column_name: column 4 of a table of 4 columns");
    CHECK_ERROR(flux_column_name(NULL, 0), "column_name: argument t is NULL");
    CHECK_ERROR(flux_table_rows(NULL) == -1, "table_rows: argument t is NULL");
    CHECK_ERROR(flux_column_missing(t, NULL) == -1, "column_missing: argument name is NULL");
    static char wide[40000];               /* many columns, then many lines of one */
    memset(wide, ',', 20000);
    for (int i = 20000; i < 40000; i += 2) memcpy(wide + i, "\n1", 2);
    CHECK_ERROR(flux_load_table(put(wide, sizeof wide)), "fields than the first one, which has 20001");
}

/* Thousands of texts, and rows beyond a page of anything: each row's code gives the text that was written. */
TEST(many_texts) {
    static char text[400000];
    size_t n = (size_t)sprintf(text, "i,word\n");
    for (int i = 0; i < 20000; i++) n += (size_t)sprintf(text + n, "%d,w%d\n", i, i * 7919 % 5003);
    flux_table *t = flux_load_table(put(text, n));
    CHECK(flux_table_rows(t) == 20000 && flux_column_labels(t, "word") == 5003);
    flux_tensor *x = flux_columns(t, "word, i");
    REQUIRE(x != NULL);
    const float *v = flux_floats(x);
    int bad = 0;
    char want[20];
    for (int i = 0; i < 20000; i++) {
        snprintf(want, sizeof want, "w%d", i * 7919 % 5003);
        const char *have = flux_column_label(t, "word", (int64_t)v[2 * i]);
        if (!have || strcmp(have, want) != 0 || v[2 * i + 1] != (float)i) bad++;
    }
    CHECK(bad == 0);
    for (int i = 1; i < 5003; i++) bad += strcmp(flux_column_label(t, "word", i - 1), flux_column_label(t, "word", i)) >= 0;
    CHECK(bad == 0);
}

TEST(a_table_outlives_nothing) {
    flux_table *kept = NULL;
    flux_tensor *x = NULL;
    FLUX_SCOPE {
        kept = (flux_table *)flux_retain(table(passengers));
        x = flux_keep(flux_columns(table(passengers), NULL));
    }
    CHECK(flux_table_rows(kept) == 4 && flux_at(x, 2, 0) == 22);
    flux_release(kept);
}

static bool scarce_call(void) {
    flux_table *t = flux_load_table("build/test_tables.scarce");
    return t && flux_columns(t, "age, sex");
}
TEST(out_of_memory) {
    FILE *f = fopen("build/test_tables.scarce", "wb");
    REQUIRE(f != NULL);
    fputs(passengers, f), fclose(f);
    SCARCE(scarce_call(), 3, 1);
}

TEST_MAIN()
