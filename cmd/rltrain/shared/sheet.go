package shared

import (
	"fmt"
	"strings"
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
