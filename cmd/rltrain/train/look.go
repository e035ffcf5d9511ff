package train

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/term"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
)

// shownLabels is how many labels the table of the data has, those with a remark aside.
const shownLabels = 20

// review prints how many rows the labels of the user's data have in each split, and what is doubtful about them.
func (t *trainer) review(rows []dataset.Row, d labelled) {
	if t.config.Text("dataset") == "" {
		return
	}
	found := dataset.ReviewRows(rows)
	counts := map[string][3]int{}
	for i, part := range [][]dataset.Row{d.train, d.val, d.test} {
		for _, r := range part {
			n := counts[r.Label]
			n[i]++
			counts[r.Label] = n
		}
	}
	var table [][]string
	hidden := 0
	for i, l := range found.Labels {
		if i >= shownLabels && found.Doubts[l.Label] == "" {
			hidden++
			continue
		}
		n := counts[l.Label]
		table = append(table, []string{strconv.Quote(l.Label), strconv.Itoa(n[0]), strconv.Itoa(n[1]), strconv.Itoa(n[2]), found.Doubts[l.Label]})
	}
	text := "Data: " + report.Plural(len(rows), "row") + " with " + report.Plural(len(found.Labels), "label") + "\n" + report.RenderTable([]string{"label", "train", "val", "test", ""}, table)
	if hidden > 0 {
		text += fmt.Sprintf("\n... and %d labels with fewer rows", hidden)
	}
	t.tell(text)
	for _, line := range found.Warnings() {
		t.tell(line)
	}
}

// noteTrained says how many of the tokens are trained on, and where TRL would train on others.
func noteTrained(w *work, rows policy.TokenExamples) {
	trained, tokens := rows.Counts()
	line := fmt.Sprintf("Trained tokens: %d of %d in %s", trained, tokens, report.Plural(len(rows.Sequences), "example"))
	if rows.Masked > 0 {
		line += "; the assistant's messages only (TRL: all messages, as with --assistant-only-loss=false)"
	}
	w.note(line)
}

// noteGeneration says that RL does not sample as the makers of the model suggest: the loss needs the probabilities of the
// policy itself. TRL does the same.
func noteGeneration(w *work, p *policy.CausalLM) {
	if said := p.Generation().Sampling(); said != "" {
		w.note("Rollouts sample as the options say; generate, chat and serve use " + said + " from generation_config.json")
	}
}

// noteBad says how many rows were dropped because they cannot be used.
func noteBad(w *work, all ...*dataset.Faults) {
	for _, faults := range all {
		if n, first := faults.Skipped(); n > 0 {
			w.note(fmt.Sprintf("warning: %s skipped that cannot be used; the first: %v", report.Plural(n, "row"), first))
		}
	}
}

// noteShared tells of rows that occur twice, and warns of validation rows that are trained on.
func noteShared(w *work, rows, held []policy.Sequence) {
	seen := make(map[uint64]bool, len(rows))
	for _, q := range rows {
		seen[sumOf(q.IDs)] = true
	}
	if n := len(rows) - len(seen); n > 0 {
		w.note(fmt.Sprintf("note: training rows that repeat an earlier row: %d", n))
	}
	n := 0
	for _, q := range held {
		if seen[sumOf(q.IDs)] {
			n++
		}
	}
	if n > 0 {
		w.note(fmt.Sprintf("warning: remove duplicates: %d of %d validation rows are training rows too, so their figures are too good", n, len(held)))
	}
}

// sumOf tells sequences of tokens apart; FNV-1a.
func sumOf(ids []int32) uint64 {
	sum := uint64(14695981039346656037)
	for _, id := range ids {
		sum = (sum ^ uint64(id)) * 1099511628211
	}
	return sum
}

// noteContradictions warns of pairs that another row has the other way round.
func noteContradictions(w *work, units [][]*rl.Sample) {
	seen, n := map[[2]uint64]bool{}, 0
	for _, unit := range units {
		if len(unit) != 2 {
			continue
		}
		chosen, rejected := sumOf(unit[0].Tokens), sumOf(unit[1].Tokens)
		if seen[[2]uint64{rejected, chosen}] {
			n++
		}
		seen[[2]uint64{chosen, rejected}] = true
	}
	if n > 0 {
		w.note(fmt.Sprintf("warning: remove contradictions: %s the other way round than another row", report.Plural(n, "pair")))
	}
}

// showExample prints an example as the model reads it, with what is trained on marked.
func (t *trainer) showExample(p *policy.CausalLM, q policy.Sequence) error {
	begin, end := "«", "»"
	if term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == "" {
		begin, end = "\x1b[32m", "\x1b[0m"
	}
	text, err := marked(p, q, begin, end)
	if err != nil {
		return err
	}
	return t.console.Print("First example, trained between " + begin + "these marks" + end + ":\n" + text)
}

// marked is the text of a sequence with marks around what is trained on.
func marked(p *policy.CausalLM, q policy.Sequence, begin, end string) (string, error) {
	var b strings.Builder
	for from := 0; from < len(q.IDs); {
		to := from + 1
		for to < len(q.IDs) && q.Labels[to] == q.Labels[from] {
			to++
		}
		text, err := p.Tokenizer.Decode(q.IDs[from:to], false)
		if err != nil {
			return "", err
		}
		if q.Labels[from] {
			text = begin + text + end
		}
		b.WriteString(text)
		from = to
	}
	return b.String(), nil
}
