package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Split is a part of a data set, such as train.
type Split struct {
	Name string
	Rows int
}

// Header is the block printed before a stage starts.
type Header struct {
	Task, Stage      string
	Model            string // name or folder
	Total, Trainable int64  // parameters; Total includes Trainable, and is 0 if a service has them
	Device           string
	Threads          int
	Data             string // name or file
	Splits           []Split
	Output           string
}

// String returns the block, with a line feed after every line.
func (h Header) String() string {
	sizes := make([]string, len(h.Splits))
	for i, s := range h.Splits {
		sizes[i] = s.Name + " " + Count(int64(s.Rows))
	}
	data := h.Data
	if len(sizes) > 0 {
		data += " (" + strings.Join(sizes, ", ") + ")"
	}
	trainable := "an adapter on a service"
	if h.Total > 0 {
		trainable = fmt.Sprintf("%s of %s parameters (%.2f%%)", Count(h.Trainable), Count(h.Total), 100*float64(h.Trainable)/float64(h.Total))
	}
	lines := [][2]string{
		{"model", h.Model},
		{"trainable", trainable},
		{"device", fmt.Sprintf("%s, %s", h.Device, Plural(h.Threads, "thread"))},
		{"data", data},
		{"output", h.Output},
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", h.Task, h.Stage)
	for _, l := range lines {
		fmt.Fprintf(&b, "  %-11s%s\n", l[0], l[1])
	}
	return b.String()
}

// RenderTable formats rows as aligned columns under headers, with numbers right-aligned. Rows may be shorter than headers.
func RenderTable(headers []string, rows [][]string) string {
	widths, right := columns(headers, rows)
	var b strings.Builder
	line := func(cells []string) {
		out := make([]string, len(headers))
		for i := range headers {
			out[i] = pad(cell(cells, i), widths[i], right[i])
		}
		b.WriteString(strings.TrimRight(strings.Join(out, "  "), " ") + "\n")
	}
	line(headers)
	rule := make([]string, len(headers))
	for i, w := range widths {
		rule[i] = strings.Repeat("-", w)
	}
	line(rule)
	for _, row := range rows {
		line(row)
	}
	return b.String()
}

// MarkdownTable formats the same table as Markdown, with aligned columns.
func MarkdownTable(headers []string, rows [][]string) string {
	return markdown(headers, rows, true)
}

// NarrowMarkdownTable is MarkdownTable without padding, for cells as long as help texts.
func NarrowMarkdownTable(headers []string, rows [][]string) string {
	return markdown(headers, rows, false)
}

func markdown(headers []string, rows [][]string, aligned bool) string {
	escape := strings.NewReplacer("|", `\|`, "\n", " ").Replace
	escaped := make([][]string, len(rows))
	for i, row := range rows {
		escaped[i] = make([]string, len(row))
		for j, text := range row {
			escaped[i][j] = escape(text)
		}
	}
	widths, right := columns(headers, escaped)
	for i, w := range widths {
		if widths[i] = max(3, w); !aligned {
			widths[i] = 0
		}
	}
	var b strings.Builder
	line := func(cells []string) {
		for i := range headers {
			b.WriteString("| " + pad(cell(cells, i), widths[i], right[i]) + " ")
		}
		b.WriteString("|\n")
	}
	line(headers)
	for i, w := range widths {
		if right[i] {
			b.WriteString("| " + strings.Repeat("-", max(3, w)-1) + ": ")
		} else {
			b.WriteString("| " + strings.Repeat("-", max(3, w)) + " ")
		}
	}
	b.WriteString("|\n")
	for _, row := range escaped {
		line(row)
	}
	return b.String()
}

// columns returns the width of each column and whether it holds only numbers.
func columns(headers []string, rows [][]string) (widths []int, right []bool) {
	widths, right = make([]int, len(headers)), make([]bool, len(headers))
	for i, h := range headers {
		widths[i] = utf8.RuneCountInString(h)
		numbers, texts := 0, 0
		for _, row := range rows {
			text := cell(row, i)
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
			switch {
			case text == "" || text == "-":
			case strings.ContainsRune("+-−0123456789", []rune(text)[0]) && letters(text) <= unitLetters:
				numbers++
			default:
				texts++
			}
		}
		right[i] = numbers > 0 && texts == 0
	}
	return widths, right
}

// unitLetters is how many letters the units and words of a number may have; a cell with more is a text that begins with one.
const unitLetters = 20

func letters(text string) (n int) {
	for _, r := range text {
		if unicode.IsLetter(r) {
			n++
		}
	}
	return n
}

func cell(row []string, i int) string {
	if i < len(row) {
		return row[i]
	}
	return ""
}

func pad(text string, width int, right bool) string {
	space := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
	if right {
		return space + text
	}
	return text + space
}

// Count formats n with commas: 1,327,104.
func Count(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// Duration formats d to about two digits: "12 ms", "4.2 s", "3 min 05 s", "1 h 02 min".
func Duration(d time.Duration) string {
	if d < 0 {
		return "-" + Duration(-d)
	}
	tenths := d.Round(100 * time.Millisecond)
	seconds := d.Round(time.Second)
	minutes := d.Round(time.Minute)
	switch {
	case d.Round(time.Millisecond) < time.Second:
		return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
	case tenths < time.Minute:
		return fmt.Sprintf("%.1f s", tenths.Seconds())
	case seconds < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(seconds.Minutes()), int(seconds.Seconds())%60)
	}
	return fmt.Sprintf("%d h %02d min", int(minutes.Hours()), int(minutes.Minutes())%60)
}

// Clock formats d as m:ss or h:mm:ss, which changes width less often than [Duration].
func Clock(d time.Duration) string {
	if d > 1000*time.Hour { // no estimate yet
		return "?"
	}
	s := int(math.Round(max(0, d.Seconds())))
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

// Plural formats a count and its noun: "1 thread", "2 threads".
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Shortened returns the first runes of a text, with ... if it cut the rest.
func Shortened(text string, runes int) string {
	if r := []rune(text); len(r) > runes {
		return string(r[:runes]) + "..."
	}
	return text
}
