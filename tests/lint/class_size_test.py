# SPDX-License-Identifier: Apache-2.0
"""No class has more functions, and no source more lines, than a reader can hold."""

from __future__ import annotations

import os
import unittest

from tests.lint import class_size, source_tree
from tests.lint.class_size import FUNCTIONS_MAX, LINES_MAX, Allowed

_SAME_SOURCES = "a sanitizer does not change the sources; ./test without one reads them"

# The classes that may have more functions than FUNCTIONS_MAX, with as many as they have, and why.
# The counts may only shrink. A class that no longer needs its line loses it.
ALLOWED: dict[str, Allowed] = {}


@unittest.skipIf("TALWEG_SANITIZER" in os.environ, _SAME_SOURCES)
class TreeTest(unittest.TestCase):
    def setUp(self) -> None:
        self.root = source_tree.root()
        self.paths = source_tree.files(*class_size.SUFFIXES)
        self.assertIn("libs/membership/scheduler_core.h", self.paths)

    def test_no_class_is_too_large(self) -> None:
        found = []
        for path in filter(class_size.is_production, self.paths):
            found += class_size.problems(path, (self.root / path).read_text(), ALLOWED)
        self.assertFalse(found, "\n" + "\n".join(found))

    def test_no_exception_is_wider_than_it_need_be(self) -> None:
        sizes = {
            each.name: len(each.functions)
            for path in filter(class_size.is_production, self.paths)
            for each in class_size.classes(path, (self.root / path).read_text())
            if each.name in ALLOWED
        }
        for name, allowed in ALLOWED.items():
            with self.subTest(name):
                remedy = "lower its count in ALLOWED, or remove the line"
                self.assertGreater(allowed.functions, FUNCTIONS_MAX, remedy)
                self.assertEqual(sizes.get(name, 0), allowed.functions, remedy)

    def test_no_source_is_too_long(self) -> None:
        found = []
        for path in self.paths:
            if path.split("/")[0] not in (*class_size.ROOTS, "tests"):
                continue
            lines = (self.root / path).read_text().count("\n")
            if lines > LINES_MAX:
                found.append(f"{path} has {lines} lines; at most {LINES_MAX}: split it by topic")
        self.assertFalse(found, "\n" + "\n".join(found))


class CppTest(unittest.TestCase):
    def functions(self, body: str) -> list[str]:
        classes = class_size.classes("a.h", f"class A {{\n{body}\n}};\n")
        self.assertEqual(classes[0].name, "A")
        return classes[0].functions

    def test_functions(self) -> None:
        for body, names in {
            "void F();": ["F"],
            "int f(int a) const { return g(a); }": ["f"],
            "virtual Outcome<std::map<int, bool>> F(std::span<const int> a) const = 0;": ["F"],
            "A(); explicit A(int a) : a_(a), b_{1}, c_{f(a)} {} ~A();": ["A", "A", "~A"],
            "auto F() const -> std::vector<int> { return {}; } int G() noexcept(true);": ["F", "G"],
            "[[nodiscard]] static int F() { return 1; }": ["F"],
            "template <typename T, int (*f)(int)> void F(T t); void G();": ["F", "G"],
            "template <typename T> requires(sizeof(T) > 1) void F(T t);": ["F"],
            "void F(std::function<void(int)> f = [](int a) { return; });": ["F"],
            "const std::map<int, int>& all() const { return all_; }": ["all"],
            "alignas(64) int F(); decltype(auto) G();": ["F", "G"],
        }.items():
            self.assertEqual(self.functions(body), names, body)

    def test_operators(self) -> None:
        self.assertEqual(
            self.functions(
                "bool operator()(int a); bool operator==(const A&) const; operator bool() const;"
                "A& operator<<(int a) { return *this; }"
            ),
            ["operator( )", "operator= =", "operatorbool", "operator< <"],
        )

    def test_what_is_no_function(self) -> None:
        for body in (
            "int a = f(1); int b{g(2)}; std::array<int, (2 > 1)> c = {f(1)}; int d : 3, e[2];",
            "std::function<void(int)> f_; void (*call)(int) = nullptr; int (A::*m)(int);",
            "std::function<void()> g = [](int a) { return F(a); };",
            "A() = default; A(const A&) = delete; ~A() noexcept = default;",
            "friend bool operator==(const A&, const A&) = default; friend class B;",
            "friend int F(A a) { return g(a); } using B = int(int); typedef int C(int);",
            'static_assert(sizeof(int) == 4, "void F();"); enum class E : int { kA, kB = f(1) };',
            "// void F();\n/* void G();\n */ class Later; struct Later* later;",
            "#define F(a) \\\n  void G(a)\n",
            "alignas(64) int a; std::atomic<int> b{0}; const char c = '{', *d = \"}\";",
            'const char* text = R"x(void F(); }; )" )x";',
        ):
            self.assertEqual(self.functions(body), [], body)

    def test_each_class_has_its_own_functions(self) -> None:
        classes = class_size.classes(
            "a.h",
            """
            template <class T>
            class Outer final : public Base<T, (1 > 0)>, private B {
             public:
              struct Inner {
                void F();
                enum { kA };
              } inner;
              void G();
             private:
              struct { int a() { return 1; } } unnamed_;
              void H();
            };
            struct Outer<int>::Named { void F(); };
            class Declared;
            enum class E { kA };
            void Outside() { struct Local { int f() { return 1; } }; struct stat st{}; }
            """,
        )
        self.assertEqual(
            [(each.name, each.functions) for each in classes],
            [
                ("Outer", ["G", "H"]),
                ("Outer::Inner", ["F"]),
                ("Outer::(unnamed)", ["a"]),
                ("Outer::Named", ["F"]),
                ("Local", ["f"]),
            ],
        )

    def test_lines(self) -> None:
        text = '// One.\n#include "a.h"\n/* Two\nthree. */\nclass A {\n};\n'
        self.assertEqual(class_size.classes("a.h", text)[0].line, 5)


class RulesTest(unittest.TestCase):
    def planted(self, count: int) -> str:
        functions = "".join(f"  void F{i}();\n" for i in range(count))
        return f"// A comment.\nclass Planted {{\n public:\n{functions}}};\n"

    def test_a_class_that_is_too_large_is_named_with_its_count_and_the_remedy(self) -> None:
        path = "libs/view/planted.h"
        self.assertEqual(class_size.problems(path, self.planted(FUNCTIONS_MAX), {}), [])
        self.assertEqual(
            class_size.problems(path, self.planted(FUNCTIONS_MAX + 1), {}),
            [
                f"{path}:2: class Planted has 41 functions; at most 40 are allowed: "
                + class_size.REMEDY
            ],
        )

    def test_an_exception_is_for_as_many_as_it_says(self) -> None:
        allowed = {"Planted": Allowed(50, "a test")}
        path = "libs/view/planted.h"
        self.assertEqual(class_size.problems(path, self.planted(50), allowed), [])
        self.assertEqual(len(class_size.problems(path, self.planted(51), allowed)), 1)

    def test_python(self) -> None:
        text = "class A:\n    def f(self): ...\n\n    async def g(self):\n        def h(): ...\n"
        classes = class_size.classes("a.py", text + "\n    class B:\n        def f(self): ...\n")
        self.assertEqual(
            [(each.name, each.functions) for each in classes], [("A", ["f", "g"]), ("B", ["f"])]
        )

    def test_production(self) -> None:
        for path in ("libs/view/view.h", "services/agent/main.cc", "clients/python/talweg/_a.py"):
            self.assertTrue(class_size.is_production(path), path)
        for path in (
            "tests/sim/life.h",
            "libs/view/view_test.cc",
            "libs/shm/daemon/rank_server_fixture.h",
            "libs/shm/testing/agent.h",
            "libs/reduce/reduce_benchmark.cc",
            "libs/view/BUILD.bazel",
        ):
            self.assertFalse(class_size.is_production(path), path)


if __name__ == "__main__":
    unittest.main()
