package formula

import (
	"errors"
	"math/big"
	"regexp"
	"strings"
)

// Bounds of an answer.
const (
	MaxLength = 4000 // bytes
	maxTokens = 1500
	maxDepth  = 60
	maxDigits = 400 // of a number
)

// ErrTooLong is the error of an answer that is too long, or nested too deeply.
var ErrTooLong = errors.New("the answer is too long or too deep to be read as mathematics")

type tokenKind int

const (
	endToken     tokenKind = iota
	numberToken            // number, places, digits
	wordToken              // letters as typed
	commandToken           // \name, without the backslash
	symbolToken            // one character, or an operator of several
	textToken              // the inside of \text{}
	beginToken             // \begin{text}
	finishToken            // \end{text}
)

type token struct {
	kind           tokenKind
	text           string
	space          bool // there was space before it
	number         *big.Rat
	places, digits int
	plain          bool // a number that was written as digits alone
}

// commas says what a comma between digits is.
type commas int

const (
	thousands commas = iota // groups of three, where they can be; else it separates
	separator
	decimal // the decimal sign, and dots between groups of three
)

type lexer struct {
	s       string
	at      int
	commas  commas
	spaced  bool // commas that separate have a space behind them
	depth   int  // of brackets
	braces  int  // that are open
	tokens  []token
	problem error
}

// lex takes a cleaned answer apart.
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

// spaces are commands that only leave room.
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

// lexForeign takes a run of characters outside ASCII as a word of text; signs of money
// are symbols.
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

// fonts only change how their argument looks; its letters are mathematics.
var fonts = map[string]bool{"mathbf": true, "boldsymbol": true, "bm": true, "mathit": true, "mathcal": true, "mathsf": true, "vec": true, "boxed": true, "fbox": true, "ensuremath": true, "underline": true, "mathnormal": true, "mathop": true, "tt": true, "rm": true, "bf": true, "it": true}

// arrow is what has a direction as an argument of \vec: two points.
var arrow = regexp.MustCompile(`^ ?\{ ?[A-Z]['\d_]* ?[A-Z]`)

// texts hold words.
var texts = map[string]bool{"text": true, "textbf": true, "textit": true, "textrm": true, "mbox": true, "mathrm": true, "operatorname": true, "textnormal": true, "hbox": true, "textsf": true, "texttt": true, "emph": true, "textup": true, "rm": true}

func (l *lexer) lexCommand() {
	l.at++
	if l.at == len(l.s) {
		return // a backslash at the end means nothing
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
			l.problem = errors.New("an unknown command")
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
		l.problem = errors.New("an environment without a name")
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

// lexText takes the inside of \text{}: names of functions and numbers are mathematics.
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

// argument takes {…} at this place, with space before it.
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
