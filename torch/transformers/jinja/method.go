package jinja

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// mutating are the methods that change a value, which templates may not call.
var mutating = map[string][]string{
	"list": {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"},
	"dict": {"clear", "pop", "popitem", "setdefault", "update"},
}

// method returns a method of a Python value.
func method(x Value, name string) (Value, bool) {
	var table map[string]*builtin
	switch x.(type) {
	case string:
		table = stringMethods
	case *List:
		table = listMethods
	case *Dict:
		table = dictMethods
	}
	if b, ok := table[name]; ok {
		return b.bind(name, x), true
	}
	if slices.Contains(mutating[typeName(x)], name) {
		return Undefined{fmt.Sprintf("%s has no attribute '%s' in a template, where values do not change", object(x), name)}, true
	}
	return nil, false
}

var dictMethods = map[string]*builtin{
	"get": define("key default=none", func(c *call) Value {
		if key, ok := c.args[0].(string); ok {
			if v, ok := c.self.(*Dict).Get(key); ok {
				return v
			}
		}
		return c.args[1]
	}),
	"keys":   define("", func(c *call) Value { return &List{Items: c.r.items(c.self)} }),
	"values": define("", func(c *call) Value { return pairs(c, func(_ string, v Value) Value { return v }) }),
	"items":  define("", dictItems),
	"copy":   define("", func(c *call) Value { return c.self }),
}

func pairs(c *call, f func(key string, v Value) Value) *List {
	d := c.self.(*Dict)
	c.r.listed(d.Len())
	l := &List{}
	for _, key := range d.keys {
		l.Items = append(l.Items, f(key, d.values[key]))
	}
	return l
}

func dictItems(c *call) Value {
	return pairs(c, func(key string, v Value) Value { return &List{Items: []Value{key, v}, Tuple: true} })
}

var listMethods = map[string]*builtin{
	"index": define("value", func(c *call) Value {
		for i, item := range c.self.(*List).Items {
			if c.r.equal(item, c.args[0], 0) {
				return int64(i)
			}
		}
		c.r.fail("%s is not in the list", c.r.repr(c.args[0]))
		return nil
	}),
	"count": define("value", func(c *call) Value {
		n := int64(0)
		for _, item := range c.self.(*List).Items {
			if c.r.equal(item, c.args[0], 0) {
				n++
			}
		}
		return n
	}),
	"copy": define("", func(c *call) Value { return c.self }),
}

// ofString is a method without arguments.
func ofString[T Value](f func(s string) T) *builtin {
	return define("", func(c *call) Value { return f(c.self.(string)) })
}

// every reports whether s is not empty and f holds for each character.
func every(f func(c rune) bool) *builtin {
	return ofString(func(s string) bool {
		return s != "" && strings.IndexFunc(s, func(c rune) bool { return !f(c) }) < 0
	})
}

func trim(cut func(string, func(rune) bool) string) *builtin {
	return define("chars=none", func(c *call) Value {
		if c.args[0] == nil {
			return cut(c.self.(string), isSpace)
		}
		chars := c.text(0)
		return cut(c.self.(string), func(r rune) bool { return strings.ContainsRune(chars, r) })
	})
}

func affix(has func(s, affix string) bool) *builtin {
	return define("affix", func(c *call) Value {
		if l, ok := c.args[0].(*List); ok && l.Tuple {
			return slices.ContainsFunc(l.Items, func(v Value) bool {
				s, ok := v.(string)
				return ok && has(c.self.(string), s)
			})
		}
		return has(c.self.(string), c.text(0))
	})
}

// find returns the index of a substring in characters; absent decides what happens if it does not occur.
func find(search func(s, sub string) int, absent func(c *call) Value) *builtin {
	return define("sub", func(c *call) Value {
		s := c.self.(string)
		if i := search(s, c.text(0)); i >= 0 {
			return int64(utf8.RuneCountInString(s[:i]))
		}
		return absent(c)
	})
}

func minusOne(*call) Value { return int64(-1) }

func notFound(c *call) Value {
	c.r.fail("substring %.40q is not found", c.text(0))
	return nil
}

// pad fills s up to a width; left is how many of the n fill characters go before it.
func pad(left func(n, width int) int) *builtin {
	return define("width fill= ", func(c *call) Value {
		s, fill := c.self.(string), " "
		if c.args[1] != "" {
			fill = c.text(1)
		}
		n := c.number(0) - utf8.RuneCountInString(s)
		if n <= 0 {
			return s
		}
		c.r.repeats(len(fill), int64(n))
		before := left(n, c.number(0))
		return c.r.concat(strings.Repeat(fill, before), s, strings.Repeat(fill, n-before))
	})
}

// partition splits s around the separator that search finds; without one, s is the part at whole.
func partition(search func(s, sep string) int, whole int) *builtin {
	return define("sep", func(c *call) Value {
		s, sep := c.self.(string), c.separator()
		parts := []Value{"", "", ""}
		if i := search(s, sep); i >= 0 {
			parts = []Value{s[:i], sep, s[i+len(sep):]}
		} else {
			parts[whole] = s
		}
		return &List{Items: parts, Tuple: true}
	})
}

var stringMethods map[string]*builtin

func init() { // a map literal would refer to itself through join
	stringMethods = map[string]*builtin{
		"upper":      ofString(strings.ToUpper),
		"lower":      ofString(strings.ToLower),
		"casefold":   ofString(strings.ToLower),
		"title":      ofString(title),
		"capitalize": ofString(capitalize),
		"swapcase": ofString(func(s string) string {
			return strings.Map(func(c rune) rune {
				if unicode.IsUpper(c) {
					return unicode.ToLower(c)
				}
				return unicode.ToUpper(c)
			}, s)
		}),
		"isdigit":      every(unicode.IsDigit),
		"isdecimal":    every(unicode.IsDigit),
		"isnumeric":    every(unicode.IsNumber),
		"isalpha":      every(unicode.IsLetter),
		"isalnum":      every(func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) }),
		"isspace":      every(isSpace),
		"isupper":      ofString(func(s string) bool { return s == strings.ToUpper(s) && s != strings.ToLower(s) }),
		"islower":      ofString(func(s string) bool { return s == strings.ToLower(s) && s != strings.ToUpper(s) }),
		"strip":        trim(strings.TrimFunc),
		"lstrip":       trim(strings.TrimLeftFunc),
		"rstrip":       trim(strings.TrimRightFunc),
		"startswith":   affix(strings.HasPrefix),
		"endswith":     affix(strings.HasSuffix),
		"removeprefix": define("prefix", func(c *call) Value { return strings.TrimPrefix(c.self.(string), c.text(0)) }),
		"removesuffix": define("suffix", func(c *call) Value { return strings.TrimSuffix(c.self.(string), c.text(0)) }),
		"find":         find(strings.Index, minusOne),
		"rfind":        find(strings.LastIndex, minusOne),
		"index":        find(strings.Index, notFound),
		"rindex":       find(strings.LastIndex, notFound),
		"count":        define("sub", func(c *call) Value { return int64(strings.Count(c.self.(string), c.text(0))) }),
		"replace":      define("old new count=-1", replace),
		"split":        define("sep=none maxsplit=-1", split),
		"rsplit":       define("sep=none maxsplit=-1", rsplit),
		"splitlines":   define("keepends=false", splitLines),
		"partition":    partition(strings.Index, 0),
		"rpartition":   partition(strings.LastIndex, 2),
		"center":       pad(func(n, width int) int { return n/2 + n&width&1 }),
		"ljust":        pad(func(_, _ int) int { return 0 }),
		"rjust":        pad(func(n, _ int) int { return n }),
		"zfill":        define("width", zeroFill),
		"join":         define("items", func(c *call) Value { return joinStrings(c, c.self.(string)) }),
		"format":       define("*", func(c *call) Value { return c.r.braces(c.self.(string), c.args, c.kw) }),
	}
}

func joinStrings(c *call, sep string) Value {
	items := c.r.items(c.args[0])
	texts := make([]string, len(items))
	n := 0
	for i, item := range items {
		s, ok := item.(string)
		if !ok {
			c.r.fail("join needs strings, not %s", typeName(item))
		}
		texts[i] = s
		n += len(s) + len(sep)
	}
	return c.r.joined(texts, sep, n)
}

// joined joins strings with n bytes in total and their separators.
func (r *run) joined(texts []string, sep string, n int) string {
	if r.built(n + 32*len(texts)); n > maxOutput {
		r.fail("a string is longer than %d bytes", maxOutput)
	}
	return strings.Join(texts, sep)
}

func replace(c *call) Value {
	s, old, with, limit := c.self.(string), c.text(0), c.text(1), c.number(2)
	n := strings.Count(s, old)
	if limit >= 0 {
		n = min(n, limit)
	}
	c.r.repeats(len(with), int64(n))
	return strings.Replace(s, old, with, limit)
}

// split and rsplit are Python's methods, with at most maxsplit splits from their end.
func split(c *call) Value {
	s, limit := c.self.(string), c.number(1)
	if c.args[0] == nil {
		parts := []string{}
		for s = strings.TrimLeftFunc(s, isSpace); s != ""; s = strings.TrimLeftFunc(s, isSpace) {
			end := strings.IndexFunc(s, isSpace)
			if end < 0 || limit >= 0 && len(parts) == limit {
				end = len(s)
			}
			parts = append(parts, s[:end])
			s = s[end:]
		}
		return c.parts(parts)
	}
	return c.parts(strings.SplitN(s, c.separator(), splitLimit(limit)))
}

func rsplit(c *call) Value {
	s, limit := c.self.(string), c.number(1)
	var parts []string
	if c.args[0] == nil {
		for s = strings.TrimRightFunc(s, isSpace); s != ""; s = strings.TrimRightFunc(s, isSpace) {
			start := 0
			if i := strings.LastIndexFunc(s, isSpace); i >= 0 && (limit < 0 || len(parts) < limit) {
				_, width := utf8.DecodeRuneInString(s[i:])
				start = i + width
			}
			parts = append(parts, s[start:])
			s = s[:start]
		}
	} else {
		sep := c.separator()
		for limit < 0 || len(parts) < limit {
			i := strings.LastIndex(s, sep)
			if i < 0 {
				break
			}
			parts = append(parts, s[i+len(sep):])
			s = s[:i]
		}
		parts = append(parts, s)
	}
	slices.Reverse(parts)
	return c.parts(parts)
}

func splitLimit(limit int) int {
	if limit < 0 {
		return -1
	}
	return limit + 1
}

func (c *call) separator() string {
	sep := c.text(0)
	if sep == "" {
		c.r.fail("the separator is empty")
	}
	return sep
}

func (c *call) parts(texts []string) Value {
	c.r.listed(len(texts))
	return stringsList(texts)
}

func splitLines(c *call) Value { return c.parts(splitText(c.self.(string), c.flag(0))) }

// splitText is Python's str.splitlines.
func splitText(s string, keepEnds bool) []string {
	parts := []string{}
	for s != "" {
		end, next := len(s), len(s)
		if i := strings.IndexAny(s, "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029"); i >= 0 {
			_, width := utf8.DecodeRuneInString(s[i:])
			if strings.HasPrefix(s[i:], "\r\n") {
				width = 2
			}
			end, next = i, i+width
		}
		if keepEnds {
			end = next
		}
		parts = append(parts, s[:end])
		s = s[next:]
	}
	return parts
}

func zeroFill(c *call) Value {
	s, sign := c.self.(string), ""
	n := c.number(0) - utf8.RuneCountInString(s)
	if n <= 0 {
		return s
	}
	if s != "" && (s[0] == '-' || s[0] == '+') {
		sign, s = s[:1], s[1:]
	}
	c.r.repeats(1, int64(n))
	return sign + strings.Repeat("0", n) + s
}

func capitalize(s string) string {
	first, width := utf8.DecodeRuneInString(s)
	if width == 0 {
		return s
	}
	return string(unicode.ToTitle(first)) + strings.ToLower(s[width:])
}

func title(s string) string {
	before := ' '
	return strings.Map(func(c rune) rune {
		inWord := unicode.IsLetter(before)
		before = c
		if inWord {
			return unicode.ToLower(c)
		}
		return unicode.ToTitle(c)
	}, s)
}
