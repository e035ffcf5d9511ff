package shared

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
)

// Sheet is headings, each with rows of a name and a text.
type Sheet struct{ strings.Builder }

// Head begins a part.
func (s *Sheet) Head(format string, args ...any) {
	if s.Len() > 0 {
		s.WriteString("\n")
	}
	s.WriteString(OneLine(fmt.Sprintf(format, args...)) + "\n")
}

// Row adds a row to it.
func (s *Sheet) Row(name, format string, args ...any) {
	fmt.Fprintf(s, "  %-17s %s\n", name, OneLine(fmt.Sprintf(format, args...)))
}

// Block adds lines, as a table, set in.
func (s *Sheet) Block(lines string) {
	s.WriteString("  " + strings.ReplaceAll(strings.TrimSuffix(lines, "\n"), "\n", "\n  ") + "\n")
}

// A table of tokens shows tokensBefore tokens before the first trained one, then the first and the last tokens.
const (
	tokensBefore = 3
	tokensFirst  = 16
	tokensLast   = 6
)

// TrainedTokens adds a table of a sample's tokens that says which are trained on.
func (s *Sheet) TrainedTokens(p *policy.CausalLM, x *rl.Sample) error {
	s.Row("tokens", "%d, %d trained on", len(x.Tokens), len(x.Rows))
	first := len(x.Tokens)
	if len(x.Rows) > 0 {
		first = slices.Min(x.Rows) + 1 // a token is predicted by the one before it
	}
	first = max(0, first-tokensBefore)
	var rows [][]string
	for i := first; i < len(x.Tokens); i++ {
		if i == first+tokensFirst && i < len(x.Tokens)-tokensLast {
			rows = append(rows, []string{"", "", "...", ""})
			i = len(x.Tokens) - tokensLast
		}
		text, err := p.Tokenizer.Decode(x.Tokens[i:i+1], false)
		if err != nil {
			return err
		}
		trained := map[bool]string{true: "yes", false: "no"}[slices.Contains(x.Rows, i-1)]
		rows = append(rows, []string{strconv.Itoa(i), strconv.Itoa(int(x.Tokens[i])), strconv.Quote(text), trained})
	}
	s.Block(report.RenderTable([]string{"token", "id", "text", "trained"}, rows))
	return nil
}
