package formula

import (
	"errors"
	"math/big"
	"regexp"
	"strings"
)

// Limits on an answer.
const (
	MaxLength = 4000 // bytes
	maxTokens = 1500
	maxDepth  = 60
	maxDigits = 400 // of a number
)

// ErrTooLong means that an answer is too long or too deeply nested.
var ErrTooLong = errors.New("the answer is too long or too deeply nested to parse")

type tokenKind int

const (
	endToken     tokenKind = iota
	numberToken            // number, places, digits
	wordToken              // letters as typed
	commandToken           // \name, without the backslash
	symbolToken            // one character, or a longer operator
	textToken              // content of \text{}
	beginToken             // \begin{text}
	finishToken            // \end{text}
)

type token struct {
	kind           tokenKind
	text           string
	space          bool // preceded by space
	number         *big.Rat
	places, digits int
	plain          bool // a number written only in digits
}

// commas is the meaning of a comma between digits.
type commas int

const (
	thousands commas = iota // groups of three if possible; else a separator
	separator
	decimal // the decimal sign, with dots between groups of three
)

type lexer struct {
	s       string
	at      int
	commas  commas
	spaced  bool // separating commas are followed by a space
	depth   int  // of brackets
	braces  int  // open braces
	tokens  []token
	problem error
}

// lex splits a cleaned answer into tokens.
func lex(s string, c commas) ([]token, error) {
	if len(s) > MaxLength {
		return nil, ErrTooLong
	}
	l := &lexer{s: s, commas: c, spaced: strings.Contains(s, ", ") || strings.Contains(s, ";")}
	for l.problem == nil {
		space := l.skipSpace()
		if l.at >= len(l.s) {
			break
		}
		before := len(l.tokens)
		l.next()
		if len(l.tokens) > before {
			l.tokens[before].space = space
		}
		if len(l.tokens) > maxTokens {
			return nil, ErrTooLong
		}
	}
	l.tokens = append(l.tokens, token{kind: endToken, space: true})
	return l.tokens, l.problem
}

func (l *lexer) emit(kind tokenKind, text string) {
	l.tokens = append(l.tokens, token{kind: kind, text: text})
}

// spaces are spacing commands.
var spaces = []string{`\!`, `\,`, `\;`, `\:`, `\>`, `\ `, `\quad`, `\qquad`, "~", " ", "\n"}

func (l *lexer) skipSpace() bool {
	from := l.at
again:
	if l.at == len(l.s) || strings.IndexByte("\\~ \n", l.s[l.at]) < 0 {
		return l.at > from
	}
	for _, space := range spaces {
		if rest := l.s[l.at:]; strings.HasPrefix(rest, space) && (space[0] != '\\' || !isLetter(space[len(space)-1]) || len(rest) == len(space) || !isLetter(rest[len(space)])) {
			l.at += len(space)
			goto again
		}
	}
	return l.at > from
}

func (l *lexer) next() {
	c := l.s[l.at]
	switch {
	case isDigit(c) || c == '.' && l.at+1 < len(l.s) && isDigit(l.s[l.at+1]):
		l.lexNumber()
	case isLetter(c):
		from := l.at
		for l.at < len(l.s) && isLetter(l.s[l.at]) {
			l.at++
		}
		l.emit(wordToken, l.s[from:l.at])
	case c == '\\':
		l.lexCommand()
	case strings.HasPrefix(l.s[l.at:], "..."):
		l.at += 3
		l.emit(commandToken, "ldots")
	case c < ' ' || c >= 0x7f:
		l.lexForeign()
	default:
		for _, operator := range []string{"**", "<=", ">=", "!=", "==", "=>", "->", "<>"} {
			if strings.HasPrefix(l.s[l.at:], operator) {
				l.at += len(operator)
				l.emit(symbolToken, operator)
				return
			}
		}
		switch c {
		case '(', '[':
			l.depth++
		case ')', ']':
			l.depth--
		case '{':
			l.braces++
		case '}':
			l.braces--
		}
		l.at++
		l.emit(symbolToken, string(c))
	}
}

// lexForeign reads a run of non-ASCII characters as a text word; currency signs are symbols.
func (l *lexer) lexForeign() {
	for _, sign := range []string{"€", "£", "¥", "¢", "₹"} {
		if strings.HasPrefix(l.s[l.at:], sign) {
			l.at += len(sign)
			l.emit(symbolToken, sign)
			return
		}
	}
	from := l.at
	for l.at < len(l.s) && (l.s[l.at] >= 0x7f || isLetter(l.s[l.at]) || l.s[l.at] < ' ') {
		l.at++
	}
	l.emit(textToken, l.s[from:l.at])
}

// fonts change only the appearance of their argument, which is mathematics.
var fonts = map[string]bool{"mathbf": true, "boldsymbol": true, "bm": true, "mathit": true, "mathcal": true, "mathsf": true, "vec": true, "boxed": true, "fbox": true, "ensuremath": true, "underline": true, "mathnormal": true, "mathop": true, "tt": true, "rm": true, "bf": true, "it": true}

// arrow is a directed argument of \vec: two points.
var arrow = regexp.MustCompile(`^ ?\{ ?[A-Z]['\d_]* ?[A-Z]`)

// texts contain words.
var texts = map[string]bool{"text": true, "textbf": true, "textit": true, "textrm": true, "mbox": true, "mathrm": true, "operatorname": true, "textnormal": true, "hbox": true, "textsf": true, "texttt": true, "emph": true, "textup": true, "rm": true}

func (l *lexer) lexCommand() {
	l.at++
	if l.at == len(l.s) {
		return // a trailing backslash has no meaning
	}
	if c := l.s[l.at]; !isLetter(c) {
		l.at++
		switch c {
		case '{', '}':
			if c == '{' {
				l.depth++
			} else {
				l.depth--
			}
			l.emit(symbolToken, `\`+string(c))
		case '\\':
			l.emit(symbolToken, `\\`)
		case '$', '%', '#', '&', '_':
			l.emit(symbolToken, `\`+string(c))
		case '|':
			l.emit(symbolToken, "|")
		default:
			l.problem = errors.New("unknown command")
		}
		return
	}
	from := l.at
	for l.at < len(l.s) && isLetter(l.s[l.at]) {
		l.at++
	}
	name := l.s[from:l.at]
	switch {
	case name == "begin" || name == "end":
		if inside, ok := l.argument(); ok {
			kind := beginToken
			if name == "end" {
				kind = finishToken
			}
			l.emit(kind, strings.TrimSuffix(inside, "*"))
			return
		}
		l.problem = errors.New("environment without a name")
	case texts[name]:
		if inside, ok := l.argument(); ok {
			l.lexText(name, inside)
		} else if name != "rm" && name != "mathrm" {
			l.problem = errors.New("text without braces")
		}
	case name == "vec" && arrow.MatchString(l.s[l.at:]):
		l.emit(commandToken, "overrightarrow")
	case fonts[name]:
	case name == "color" || name == "textcolor" || name == "hspace" || name == "label" || name == "tag" || name == "phantom" || name == "vspace":
		l.argument()
	default:
		l.emit(commandToken, name)
	}
}

// lexText reads the content of \text{}: function names and numbers are mathematics.
func (l *lexer) lexText(command, inside string) {
	inside = strings.TrimSpace(strings.ReplaceAll(strings.ReplaceAll(inside, "~", " "), "$", ""))
	switch _, known := functions[inside]; {
	case inside == "":
	case known && len(inside) > 1:
		l.emit(commandToken, inside)
	case command == "mathrm" && (inside == "e" || inside == "i"):
		l.emit(wordToken, inside)
	case command == "mathrm" && inside == "d":
		l.emit(wordToken, inside)
	default:
		l.emit(textToken, inside)
	}
}

// argument reads {…} here, after optional space.
func (l *lexer) argument() (inside string, ok bool) {
	at := l.at
	for at < len(l.s) && l.s[at] == ' ' {
		at++
	}
	if at == len(l.s) || l.s[at] != '{' {
		return "", false
	}
	depth := 0
	for i := at; i < len(l.s); i++ {
		switch l.s[i] {
		case '\\':
			i++
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				l.at = i + 1
				return l.s[at+1 : i], true
			}
		}
	}
	return "", false
}
