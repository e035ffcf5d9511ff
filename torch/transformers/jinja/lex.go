package jinja

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

type kind uint8

const (
	kEnd kind = iota
	kText
	kVarBegin
	kVarEnd
	kTagBegin
	kTagEnd
	kName
	kInt
	kFloat
	kString
	kOp
)

type token struct {
	kind kind
	text string
	line int
}

func (t token) String() string {
	switch t.kind {
	case kEnd:
		return "the end of the template"
	case kVarEnd:
		return "'}}'"
	case kTagEnd:
		return "'%}'"
	}
	return fmt.Sprintf("%.40q", t.text)
}

// isSpace is Python's str.isspace(), on which strip() and template trimming rely.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// lexer splits a template into text and the tokens of its tags. White space around tags is trimmed as in jinja2.lexer
// with trim_blocks and lstrip_blocks.
type lexer struct {
	src    string
	pos    int
	line   int
	tokens []token
	// lineStart reports whether the last text ended with a line break, or nothing was read.
	lineStart bool
}

func lex(source string) []token {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	l := &lexer{src: strings.TrimSuffix(source, "\n"), line: 1, lineStart: true}
	for {
		begin := l.nextTag()
		if begin < 0 {
			l.text(l.src[l.pos:], 0, false)
			l.add(kEnd, "")
			return l.tokens
		}
		open := l.src[begin+1]
		sign, width := byte(0), 2
		if rest := l.src[begin+2:]; rest != "" && (rest[0] == '-' || rest[0] == '+') {
			sign, width = rest[0], 3
		}
		l.text(l.src[l.pos:begin], sign, open != '{')
		l.pos = begin + width
		switch {
		case open == '#':
			l.comment()
		case open == '%' && l.raw():
		case open == '%':
			l.add(kTagBegin, "")
			l.inside("%}")
			l.add(kTagEnd, "")
			l.closeTag("%}")
		default:
			l.add(kVarBegin, "")
			l.inside("}}")
			l.add(kVarEnd, "")
			l.closeTag("}}")
		}
	}
}

func (l *lexer) add(k kind, text string) { l.tokens = append(l.tokens, token{k, text, l.line}) }

// skip advances by n bytes.
func (l *lexer) skip(n int) {
	read := l.src[l.pos : l.pos+n]
	l.line += strings.Count(read, "\n")
	l.lineStart = strings.HasSuffix(read, "\n")
	l.pos += n
}

func (l *lexer) nextTag() int {
	for i := l.pos; ; i++ {
		brace := strings.IndexByte(l.src[i:], '{')
		if brace < 0 {
			return -1
		}
		i += brace
		if i+1 < len(l.src) && strings.IndexByte("{%#", l.src[i+1]) >= 0 {
			return i
		}
	}
}

// text adds the text before a tag that starts with sign. If block is set, it drops blanks at the start of the tag's
// line.
func (l *lexer) text(raw string, sign byte, block bool) {
	text := raw
	if sign == '-' {
		text = strings.TrimRightFunc(text, isSpace)
	} else if sign != '+' && block {
		i := strings.LastIndexByte(text, '\n') + 1
		if (i > 0 || l.lineStart) && strings.TrimLeftFunc(text[i:], isSpace) == "" {
			text = text[:i]
		}
	}
	if text != "" {
		l.add(kText, text)
	}
	l.line += strings.Count(raw, "\n")
}

// closeTag reads the end of a tag and the white space that belongs to it.
func (l *lexer) closeTag(end string) {
	sign := byte(0)
	if c := l.src[l.pos]; c == '-' || c == '+' {
		sign = c
		l.skip(1)
	}
	n := 2
	rest := l.src[l.pos+2:]
	switch {
	case sign == '-':
		n += len(rest) - len(strings.TrimLeftFunc(rest, isSpace))
	case sign == 0 && end != "}}" && strings.HasPrefix(rest, "\n"):
		n++
	}
	l.skip(n)
}

func (l *lexer) comment() {
	i := strings.Index(l.src[l.pos:], "#}")
	if i < 0 {
		fail(l.line, "the comment has no end")
	}
	if i > 0 && (l.src[l.pos+i-1] == '-' || l.src[l.pos+i-1] == '+') {
		i--
	}
	l.skip(i)
	l.closeTag("#}")
}

// word reads name and the blanks around it at the start of s.
func word(s, name string) (string, bool) {
	s, ok := strings.CutPrefix(strings.TrimLeftFunc(s, isSpace), name)
	return strings.TrimLeftFunc(s, isSpace), ok
}

// raw reads a raw block, if there is one here.
func (l *lexer) raw() bool {
	rest, ok := word(l.src[l.pos:], "raw")
	if !ok || !strings.HasPrefix(rest, "%}") && !strings.HasPrefix(rest, "-%}") {
		return false
	}
	if body, trim := strings.CutPrefix(rest, "-%}"); trim {
		rest = strings.TrimLeftFunc(body, isSpace)
	} else {
		rest = rest[2:]
	}
	l.skip(len(l.src) - len(rest) - l.pos)
	for i := 0; ; i += 2 {
		next := strings.Index(rest[i:], "{%")
		if next < 0 {
			fail(l.line, "raw has no endraw")
		}
		i += next
		sign, tag := byte(0), rest[i+2:]
		if tag != "" && (tag[0] == '-' || tag[0] == '+') {
			sign, tag = tag[0], tag[1:]
		}
		end, ok := word(tag, "endraw")
		if !ok || !strings.HasPrefix(strings.TrimLeft(end, "+-"), "%}") {
			continue
		}
		l.text(rest[:i], sign, true)
		l.pos = len(l.src) - len(end)
		l.closeTag("%}")
		return true
	}
}

const operatorBytes = "+-*/%~<>=.,:|()[]{}"

// inside reads the tokens of a tag up to its end.
func (l *lexer) inside(end string) {
	var brackets []byte
	for {
		rest := l.src[l.pos:]
		if rest == "" {
			fail(l.line, "the tag has no %q", end)
		}
		if len(brackets) == 0 && (strings.HasPrefix(rest, end) || strings.HasPrefix(rest, "-"+end) || end == "%}" && strings.HasPrefix(rest, "+%}")) {
			return
		}
		c := rest[0]
		r, width := utf8.DecodeRuneInString(rest)
		switch {
		case isSpace(r):
			l.skip(width)
		case r == '_' || unicode.IsLetter(r):
			n := strings.IndexFunc(rest, func(r rune) bool {
				return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
			})
			if n < 0 {
				n = len(rest)
			}
			l.add(kName, rest[:n])
			l.skip(n)
		case c >= '0' && c <= '9':
			l.number(rest)
		case c == '\'' || c == '"':
			l.quoted(rest, c)
		case strings.IndexByte(operatorBytes, c) >= 0:
			n := 1
			if len(rest) > 1 {
				switch rest[:2] {
				case "**", "//", "==", "!=", "<=", ">=":
					n = 2
				}
			}
			switch c {
			case '(', '[', '{':
				brackets = append(brackets, map[byte]byte{'(': ')', '[': ']', '{': '}'}[c])
			case ')', ']', '}':
				if len(brackets) == 0 || brackets[len(brackets)-1] != c {
					fail(l.line, "unexpected %q", c)
				}
				brackets = brackets[:len(brackets)-1]
			}
			l.add(kOp, rest[:n])
			l.skip(n)
		case strings.HasPrefix(rest, "!="):
			l.add(kOp, "!=")
			l.skip(2)
		default:
			fail(l.line, "unexpected character %q", r)
		}
	}
}

func digits(s string) int {
	n := 0
	for n < len(s) && (s[n] >= '0' && s[n] <= '9' || s[n] == '_' && n > 0) {
		n++
	}
	return n
}

// number reads 12, 1_000, 0x1f, 0b1, 0o7, 1.5, 1e-3.
func (l *lexer) number(rest string) {
	k, n := kInt, digits(rest)
	if len(rest) > 2 && rest[0] == '0' && strings.IndexByte("xXbBoO", rest[1]) >= 0 {
		n = 2 + len(rest[2:]) - len(strings.TrimLeft(rest[2:], "0123456789abcdefABCDEF_"))
	} else {
		if n < len(rest) && rest[n] == '.' {
			if d := digits(rest[n+1:]); d > 0 {
				k, n = kFloat, n+1+d
			}
		}
		if n < len(rest) && (rest[n] == 'e' || rest[n] == 'E') {
			e := n + 1
			if e < len(rest) && (rest[e] == '+' || rest[e] == '-') {
				e++
			}
			if d := digits(rest[e:]); d > 0 {
				k, n = kFloat, e+d
			}
		}
	}
	l.add(k, strings.ReplaceAll(rest[:n], "_", ""))
	l.skip(n)
}

// quoted reads a string literal with Python's escapes.
func (l *lexer) quoted(rest string, quote byte) {
	var b strings.Builder
	line := l.line
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == quote:
			l.add(kString, b.String())
			l.skip(i + 1)
			return
		case c != '\\':
			b.WriteByte(c)
		case i+1 < len(rest):
			i++
			i += l.escape(&b, rest[i:]) - 1
		}
	}
	fail(line, "the string has no end")
}

var simpleEscapes = map[byte]string{
	'\n': "", '\\': "\\", '\'': "'", '"': `"`, 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
}

// escape writes the character that s, which follows a backslash, names, and returns the length of the name.
func (l *lexer) escape(b *strings.Builder, s string) int {
	c := s[0]
	if text, ok := simpleEscapes[c]; ok {
		b.WriteString(text)
		return 1
	}
	first, width, base := 1, map[byte]int{'x': 2, 'u': 4, 'U': 8}[c], rune(16)
	switch {
	case c >= '0' && c <= '7':
		first, width, base = 0, 0, 8
		for width < 3 && width < len(s) && s[width] >= '0' && s[width] <= '7' {
			width++
		}
	case c == 'N':
		fail(l.line, `the escape \N is not supported`)
	case width == 0: // an unknown escape stays as it is
		b.WriteByte('\\')
		b.WriteByte(c)
		return 1
	}
	if len(s) < first+width {
		fail(l.line, "the string has no end")
	}
	var r rune
	for _, h := range s[first : first+width] {
		d := rune(strings.IndexRune("0123456789abcdef", unicode.ToLower(h)))
		if d < 0 || d >= base || r > unicode.MaxRune {
			fail(l.line, "bad escape %q in a string", `\`+s[:first+width])
		}
		r = r*base + d
	}
	b.WriteRune(r)
	return first + width
}
