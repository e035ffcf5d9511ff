package jinja

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

// formatFloat is Python's repr of a float.
func formatFloat(f float64) string {
	switch a := math.Abs(f); {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 0):
		return strings.ToLower(strings.TrimPrefix(strconv.FormatFloat(f, 'g', -1, 64), "+"))
	case a != 0 && (a < 1e-4 || a >= 1e16):
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// str is Python's str.
func (r *run) str(v Value) string {
	switch v := v.(type) {
	case string:
		return v
	case Undefined:
		return ""
	}
	return r.repr(v)
}

// repr is Python's repr.
func (r *run) repr(v Value) string {
	var b strings.Builder
	r.writeRepr(&b, v, 0)
	return b.String()
}

func (r *run) writeRepr(b *strings.Builder, v Value, depth int) {
	r.nested(depth)
	before := b.Len()
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		b.WriteString(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case *big.Int:
		b.WriteString(v.String())
	case float64:
		b.WriteString(formatFloat(v))
	case string:
		quote(b, v)
	case Undefined:
		b.WriteString("Undefined")
	case *List:
		open, end := "[", "]"
		if v.Tuple {
			open, end = "(", ")"
		}
		if v.Tuple && len(v.Items) == 1 {
			end = ",)"
		}
		b.WriteString(open)
		for i, item := range v.Items {
			if i > 0 {
				b.WriteString(", ")
			}
			r.writeRepr(b, item, depth+1)
		}
		b.WriteString(end)
	case *Dict:
		b.WriteString("{")
		for i, key := range v.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			quote(b, key)
			b.WriteString(": ")
			r.writeRepr(b, v.values[key], depth+1)
		}
		b.WriteString("}")
	default:
		b.WriteString("<" + typeName(v) + ">")
	}
	r.paid(b, before)
}

// paid charges the budget for the bytes written to b since it had before.
func (r *run) paid(b *strings.Builder, before int) {
	if r.spend((b.Len() - before) / 64); b.Len() > maxOutput {
		r.fail("a string is longer than %d bytes", maxOutput)
	}
}

// quote writes s as a Python literal.
func quote(b *strings.Builder, s string) {
	q := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = '"'
	}
	b.WriteRune(q)
	for _, c := range s {
		switch {
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case c == '\\' || c == q:
			b.WriteByte('\\')
			b.WriteRune(c)
		case unicode.IsPrint(c):
			b.WriteRune(c)
		case c < 0x100:
			fmt.Fprintf(b, `\x%02x`, c)
		case c < 0x10000:
			fmt.Fprintf(b, `\u%04x`, c)
		default:
			fmt.Fprintf(b, `\U%08x`, c)
		}
	}
	b.WriteRune(q)
}

// percent is Python's format % arg.
func (r *run) percent(format string, arg Value) string {
	args := []Value{arg}
	if l, ok := arg.(*List); ok && l.Tuple {
		args = l.Items
	}
	named, isDict := arg.(*Dict)
	var b strings.Builder
	used := 0
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		rest := format[i+1:]
		if strings.HasPrefix(rest, "%") {
			b.WriteByte('%')
			i++
			continue
		}
		var v Value
		byName := strings.HasPrefix(rest, "(") && isDict
		if byName {
			name, after, _ := strings.Cut(rest[1:], ")")
			value, ok := named.Get(name)
			if !ok {
				r.fail("the format has no value for %q", name)
			}
			v, rest = value, after
		}
		flags := len(rest) - len(strings.TrimLeft(rest, "-+ 0#123456789."))
		if flags == len(rest) || flags > 8 {
			r.fail("the format %.40q is not supported", format)
		}
		if !byName {
			if used == len(args) {
				r.fail("the format %.40q has more places than arguments", format)
			}
			v = args[used]
			used++
		}
		b.WriteString(r.place(rest[:flags], rest[flags], v))
		i = len(format) - len(rest) + flags
	}
	if used < len(args) && !isDict {
		r.fail("the format %.40q has fewer places than arguments", format)
	}
	return r.concat(b.String())
}

// place is one placeholder of a format: its flags and width, its letter and its value.
func (r *run) place(flags string, letter byte, v Value) string {
	digits := "0123456789"
	width := strings.TrimLeft(flags, "-+ 0#")
	precision := strings.TrimPrefix(strings.TrimLeft(width, digits), ".")
	if strings.Trim(precision, digits) != "" || len(width) > 4 {
		r.fail("the flags %q of a format are not supported", flags)
	}
	n, isInt := integer(v)
	f, isNumber := number(v)
	switch letter {
	case 's', 'r': // for which 0 and the signs mean nothing
		if strings.Contains(flags[:len(flags)-len(width)], "-") {
			width = "-" + width
		}
		if letter == 'r' {
			return fmt.Sprintf("%"+width+"s", r.repr(v))
		}
		return fmt.Sprintf("%"+width+"s", r.str(v))
	case 'd', 'i', 'u':
		if isNumber && !isInt {
			n = int64(f)
		}
		if isNumber {
			return fmt.Sprintf("%"+flags+"d", n)
		}
	case 'x', 'X', 'o':
		if isInt {
			return fmt.Sprintf("%"+flags+string(letter), n)
		}
	case 'e', 'E', 'f', 'F', 'g', 'G':
		if isNumber {
			return fmt.Sprintf("%"+flags+string(letter), f)
		}
	}
	r.fail("%%%s%c in a format does not fit %s", flags, letter, typeName(v))
	return ""
}

// braces fills the placeholders {}, {0} and {name} like Python's str.format; it refuses conversions and format specs.
func (r *run) braces(format string, args []Value, kw []kwarg) string {
	var b strings.Builder
	next := 0
	for i := 0; i < len(format); i++ {
		c := format[i]
		if i+1 < len(format) && (c == '{' || c == '}') && format[i+1] == c {
			b.WriteByte(c)
			i++
			continue
		}
		if c != '{' {
			b.WriteByte(c)
			continue
		}
		name, _, ok := strings.Cut(format[i+1:], "}")
		if !ok || strings.ContainsAny(name, "{!:.[") {
			r.fail("the format %.40q is not supported", format)
		}
		i += len(name) + 1
		if name == "" {
			name = strconv.Itoa(next)
			next++
		}
		b.WriteString(r.str(r.named(name, args, kw)))
	}
	return r.concat(b.String())
}

// named finds the argument that a placeholder names.
func (r *run) named(name string, args []Value, kw []kwarg) Value {
	if n, err := strconv.Atoi(name); err == nil && n >= 0 && n < len(args) {
		return args[n]
	}
	for _, k := range kw {
		if k.name == name {
			return k.value
		}
	}
	r.fail("the format has no value for %q", name)
	return nil
}
