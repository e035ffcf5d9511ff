package jinja

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// filters are jinja2's filters that chat templates use; tojson is that of transformers.
var filters map[string]*builtin

func init() { // map, select and the like look up other filters and tests by name
	filters = map[string]*builtin{
		"abs":        define("", absolute),
		"attr":       define("name", attr),
		"batch":      define("linecount fill=none", batch),
		"capitalize": stringFilter("capitalize", ""),
		"center":     stringFilter("center", "width=80"),
		"count":      define("", lengthOf),
		"d":          define("value= boolean=false", defaultTo),
		"default":    define("value= boolean=false", defaultTo),
		"dictsort":   define("case_sensitive=false by=key reverse=false", dictSort),
		"e":          define("", escapeHTML),
		"escape":     define("", escapeHTML),
		"first":      define("", func(c *call) Value { return edge(c, 0) }),
		"float":      define("default=none", toFloat),
		"format":     define("*", formatFilter),
		"groupby":    define("attribute default=none case_sensitive=false", groupBy),
		"indent":     define("width=4 first=false blank=false", indent),
		"int":        define("default=0 base=10", toInt),
		"items":      define("", itemsOf),
		"join":       define("d= attribute=none", join),
		"last":       define("", func(c *call) Value { return edge(c, -1) }),
		"length":     define("", lengthOf),
		"list":       define("", func(c *call) Value { return &List{Items: c.r.items(c.self)} }),
		"lower":      stringFilter("lower", ""),
		"map":        define("*", mapItems),
		"max":        define("case_sensitive=false attribute=none", func(c *call) Value { return extreme(c, 1) }),
		"min":        define("case_sensitive=false attribute=none", func(c *call) Value { return extreme(c, -1) }),
		"reject":     define("*", func(c *call) Value { return choose(c, false, false) }),
		"rejectattr": define("attribute *", func(c *call) Value { return choose(c, true, false) }),
		"replace":    stringFilter("replace", "old new count=-1"),
		"reverse":    define("", reverse),
		"round":      define("precision=0 method=common", round),
		"safe":       define("", func(c *call) Value { return c.r.str(c.self) }),
		"select":     define("*", func(c *call) Value { return choose(c, false, true) }),
		"selectattr": define("attribute *", func(c *call) Value { return choose(c, true, true) }),
		"sort":       define("reverse=false case_sensitive=false attribute=none", sortItems),
		"string":     define("", func(c *call) Value { return c.r.str(c.self) }),
		"sum":        define("attribute=none start=0", sum),
		"title":      define("", titleFilter),
		"tojson":     define("ensure_ascii=false indent=none separators=none sort_keys=false", toJSON),
		"trim":       stringFilter("strip", "chars=none"),
		"unique":     define("case_sensitive=false attribute=none", unique),
		"upper":      stringFilter("upper", ""),
		"wordcount": define("", func(c *call) Value {
			return int64(len(strings.Fields(c.r.str(c.self))))
		}),
	}
}

// stringFilter applies a string method to x, converted to text.
func stringFilter(name, signature string) *builtin {
	return define(signature, func(c *call) Value {
		return stringMethods[name].use(c.r, name, c.r.str(c.self), c.args, nil)
	})
}

// titleFilter differs from the method title: only white space, hyphens and opening brackets end words.
func titleFilter(c *call) Value {
	inWord := false
	return strings.Map(func(r rune) rune {
		first := !inWord
		inWord = !isSpace(r) && !strings.ContainsRune("-({[<", r)
		if first {
			return unicode.ToUpper(r)
		}
		return unicode.ToLower(r)
	}, c.r.str(c.self))
}

func lengthOf(c *call) Value {
	n, ok := length(c.self)
	if !ok {
		c.r.fail("%s has no length", object(c.self))
	}
	return int64(n)
}

func defaultTo(c *call) Value {
	if _, missing := c.self.(Undefined); missing || c.flag(1) && !truth(c.self) {
		return c.args[0]
	}
	return c.self
}

func absolute(c *call) Value {
	if f, ok := c.self.(float64); ok {
		return math.Abs(f)
	}
	if n, ok := integer(c.self); ok && n < 0 {
		return c.r.arith("-", int64(0), n)
	}
	return c.r.arith("+", int64(0), c.self)
}

func attr(c *call) Value {
	c.r.defined(c.self)
	name := c.text(0)
	if m, ok := method(c.self, name); ok {
		return m
	}
	if _, ok := c.self.(*Dict); ok { // an entry is not an attribute
		return Undefined{object(c.self) + " has no attribute '" + name + "'"}
	}
	return c.r.attribute(c.self, name)
}

func batch(c *call) Value {
	size := c.number(0)
	if size < 1 {
		c.r.fail("batch needs a positive number")
	}
	out := &List{}
	for part := range slices.Chunk(c.r.items(c.self), size) {
		part = slices.Clone(part)
		if c.args[1] != nil {
			c.r.repeats(32, int64(size-len(part)))
			for len(part) < size {
				part = append(part, c.args[1])
			}
		}
		out.Items = append(out.Items, &List{Items: part})
	}
	return out
}

var htmlEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;")

func escapeHTML(c *call) Value { return c.r.concat(htmlEscapes.Replace(c.r.str(c.self))) }

func edge(c *call, at int64) Value {
	items := c.r.items(c.self)
	if i, ok := index(at, len(items)); ok {
		return items[i]
	}
	return Undefined{"the sequence is empty"}
}

func toInt(c *call) Value {
	switch x := c.self.(type) {
	case float64:
		if math.Abs(x) < 1<<62 {
			return int64(x)
		}
	case string:
		x = strings.ReplaceAll(strings.ToLower(strings.TrimFunc(x, isSpace)), "_", "")
		digits := strings.TrimPrefix(x, map[int]string{2: "0b", 8: "0o", 16: "0x"}[c.number(1)])
		if n, err := strconv.ParseInt(digits, min(max(c.number(1), 2), 36), 64); err == nil {
			return n
		}
		if f, err := strconv.ParseFloat(x, 64); err == nil && math.Abs(f) < 1<<62 {
			return int64(f)
		}
	}
	if n, ok := integer(c.self); ok {
		return n
	}
	return c.args[0]
}

func toFloat(c *call) Value {
	if f, ok := number(c.self); ok {
		return f
	}
	if s, ok := c.self.(string); ok {
		if f, err := strconv.ParseFloat(strings.TrimFunc(s, isSpace), 64); err == nil || math.IsInf(f, 0) {
			return f
		}
	}
	if c.args[0] == nil {
		return 0.0
	}
	return c.args[0]
}

func formatFilter(c *call) Value {
	if len(c.kw) == 0 {
		return c.r.percent(c.r.str(c.self), &List{Items: c.args, Tuple: true})
	}
	d := NewDict()
	for _, k := range c.kw {
		d.Set(k.name, k.value)
	}
	return c.r.percent(c.r.str(c.self), d)
}

func itemsOf(c *call) Value {
	switch c.self.(type) {
	case Undefined:
		return &List{}
	case *Dict:
		return dictItems(c)
	}
	c.r.fail("items needs a mapping, not %s", typeName(c.self))
	return nil
}

func indent(c *call) Value {
	step, ok := c.args[0].(string)
	if !ok {
		c.r.repeats(1, int64(c.number(0)))
		step = strings.Repeat(" ", max(c.number(0), 0))
	}
	lines := splitText(c.r.str(c.self)+"\n", false)
	c.r.repeats(len(step)+32, int64(len(lines)))
	for i, line := range lines {
		if i == 0 && c.flag(1) || i > 0 && (line != "" || c.flag(2)) {
			lines[i] = step + line
		}
	}
	return strings.Join(lines, "\n")
}

// path is jinja2's attribute argument: names and numbers with dots between.
func path(r *run, v Value, attribute Value) Value {
	if n, ok := attribute.(int64); ok {
		return r.item(v, n)
	}
	name, ok := attribute.(string)
	if !ok {
		r.fail("an attribute is a string, not %s", typeName(attribute))
	}
	for part := range strings.SplitSeq(name, ".") {
		if n, err := strconv.ParseInt(part, 10, 64); err == nil {
			v = r.item(v, n)
		} else {
			v = r.item(v, part)
		}
	}
	return v
}

func join(c *call) Value {
	items := c.r.items(c.self)
	texts := make([]string, len(items))
	sep := c.r.str(c.args[0])
	n := 0
	for i, item := range items {
		if c.args[1] != nil {
			item = path(c.r, item, c.args[1])
		}
		texts[i] = c.r.str(item)
		n += len(texts[i]) + len(sep)
	}
	return c.r.joined(texts, sep, n)
}

func sum(c *call) Value {
	total := c.args[1]
	for _, item := range c.r.items(c.self) {
		if c.args[0] != nil {
			item = path(c.r, item, c.args[0])
		}
		total = c.r.arith("+", total, item)
	}
	return total
}

func reverse(c *call) Value {
	items := slices.Clone(c.r.items(c.self))
	c.r.listed(len(items))
	slices.Reverse(items)
	if s, ok := c.self.(string); ok {
		b := make([]byte, 0, len(s))
		for _, item := range items {
			b = append(b, item.(string)...)
		}
		return string(b)
	}
	return &List{Items: items}
}

func round(c *call) Value {
	f, ok := number(c.self)
	if !ok {
		c.r.defined(c.self)
		c.r.fail("round needs a number, not %s", typeName(c.self))
	}
	digits := cmp.Compare(c.number(0), 0) * min(max(c.number(0), -c.number(0)), 300)
	scale := math.Pow(10, float64(digits))
	switch c.args[1] {
	case "ceil":
		return math.Ceil(f*scale) / scale
	case "floor":
		return math.Floor(f*scale) / scale
	case "common":
	default:
		c.r.fail("round is common, ceil or floor, not %s", c.r.repr(c.args[1]))
	}
	if digits >= 0 { // to the nearest decimal, as Python's round does
		f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', digits, 64), 64)
	} else {
		f = math.RoundToEven(f*scale) / scale
	}
	if _, isInt := integer(c.self); isInt {
		return int64(f)
	}
	return f
}

func toJSON(c *call) Value {
	w := &jsonWriter{r: c.r, ascii: c.flag(0), comma: ", ", colon: ": ", sorted: c.flag(3)}
	switch step := c.args[1].(type) {
	case nil:
	case string:
		w.pretty, w.indent, w.comma = true, step, ","
	default:
		w.pretty, w.indent, w.comma = true, strings.Repeat(" ", min(max(c.number(1), 0), 1000)), ","
	}
	if c.args[2] != nil {
		pair := c.r.items(c.args[2])
		if len(pair) != 2 {
			c.r.fail("separators are two strings, not %d", len(pair))
		}
		w.comma, w.colon = c.r.str(pair[0]), c.r.str(pair[1])
	}
	w.write(c.self, 0)
	return w.b.String()
}
