package shared

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/internal/version"
	"github.com/rltrain/rltrain/internal/words"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch"
)

// Version is the program's own; run.json and the model card record it.
const Version = version.Version

// ExitUsage is the exit code of a mistake in what the user typed.
const ExitUsage = 2

// UsageErrorf is a mistake in what the user typed, found by a command.
func UsageErrorf(format string, args ...any) error {
	return cli.Exit(fmt.Sprintf(format, args...), ExitUsage)
}

// OneLine keeps a message on one line and free of control characters, whatever names it quotes.
func OneLine(message string) string {
	return words.Printable(strings.ReplaceAll(message, "\n", "; "))
}

// OnThread runs work where libtorch computes best, with the threads of --threads, on the device of --device where the
// command has that. The native core is still being loaded when work begins.
func OnThread(c *cli.Context, work func(ctx context.Context) error) error {
	if name := c.String("device"); name != "" {
		device, err := torch.ParseDevice(name)
		if err != nil {
			return UsageErrorf("--device: %v", err)
		}
		torch.UseDevice(device)
	}
	if err := Ready(c.Context); err != nil {
		return err
	}
	torch.Start(c.Int("threads"))
	thread := torch.NewThread()
	defer thread.Close()
	err := thread.Do(c.Context, work)
	if err == nil {
		return nil
	}
	// Without the core it is not at fault what could not be done with it.
	return cmp.Or(torch.Open(0), err)
}

// TaskFlag is --task of a command that has some tasks only, or others than training; the first is the default.
func TaskFlag(names ...string) cli.Flag {
	return &cli.StringFlag{
		Name: "task", Value: names[0], Usage: "one of " + strings.Join(names, ", "),
		Action: func(_ *cli.Context, value string) error {
			if slices.Contains(names, value) {
				return nil
			}
			if len(names) == 1 {
				return UsageErrorf("--task: %q: the only choice is %s", value, names[0])
			}
			return UsageErrorf("--task: %q is none of %s", value, strings.Join(names, ", "))
		},
	}
}

// EOSNames shows the tokens that end a text.
func EOSNames(p *policy.CausalLM) string {
	return TokenNames(p, p.EOS(), "none named by the model; texts end at the token limit")
}

// shownTokens limits a list of tokens: a model's files may name all as ends.
const shownTokens = 16

// TokenNames shows tokens with their ids; none is what to say of no tokens.
func TokenNames(p *policy.CausalLM, ids []int32, none string) string {
	var names []string
	for i, id := range ids {
		if i == shownTokens {
			names = append(names, fmt.Sprintf("and %d more", len(ids)-i))
			break
		}
		text, err := p.Tokenizer.Decode([]int32{id}, false)
		if err != nil {
			text = "?"
		}
		names = append(names, fmt.Sprintf("%s (%d)", strconv.Quote(text), id))
	}
	if names == nil {
		return none
	}
	return strings.Join(names, ", ")
}

// AllRows is the split that every row is of.
const AllRows = "all"

// LabelResults is a classifier measured on labelled rows: the content of logs/eval_results.json.
type LabelResults struct {
	Model   string `json:"model"`
	Dataset string `json:"dataset"`
	Split   string `json:"split"`
	Cut     int    `json:"cut_texts"` // texts longer than the model reads
	rl.Evaluation
	Selective  []rl.Covered   `json:"selective,omitempty"`    // accuracy on the texts that the model is surest of
	OutOfScope *rl.OutOfScope `json:"out_of_scope,omitempty"` // where the data marks texts that have none of the labels
}

// String is the tables that people see.
func (r LabelResults) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %s, split %s: %s\n", r.Model, r.Dataset, r.Split, Texts(r.N, r.Cut))
	if r.Split == AllRows {
		b.WriteString("All rows are evaluated, including any that the model was trained on.\n")
	}
	b.WriteString(rl.FewRows(r.N, "texts"))
	b.WriteString("\n" + report.ScoreTable(r.Evaluation).String() + "\n" + report.ClassTable(r.Evaluation).String())
	if len(r.Selective) > 1 {
		var rows [][]string
		for _, part := range r.Selective {
			rows = append(rows, []string{fmt.Sprintf("%.1f %%", 100*part.Coverage), fmt.Sprintf("%.4f", part.Threshold), fmt.Sprintf("%.4f", part.Accuracy), report.Count(int64(part.N))})
		}
		b.WriteString("\n" + report.RenderTable([]string{"surest texts", "probability from", "accuracy", "texts"}, rows))
	}
	if o := r.OutOfScope; o != nil {
		b.WriteString("\n" + outOfScope(o))
	}
	return b.String()
}

// outOfScope is what rejecting does, as people see it.
func outOfScope(o *rl.OutOfScope) string {
	chosen := "as given"
	if o.Chosen != "" {
		chosen = "chosen on the rows of " + o.Chosen
	}
	return fmt.Sprintf("Rejecting below %.4f (%s): of %s texts out of scope (%s) %.1f %% are rejected [%.1f, %.1f],\nof %s others %.1f %% [%.1f, %.1f]; %.1f %% of these get their label. AUROC %.4f\n",
		o.Threshold, chosen, report.Count(int64(o.N)), o.Label, 100*o.Recall, 100*o.Intervals[0][0], 100*o.Intervals[0][1],
		report.Count(int64(o.InScope)), 100*o.FalseAlarms, 100*o.Intervals[1][0], 100*o.Intervals[1][1], 100*o.Accuracy, o.AUROC)
}

// Texts says how many texts there are, and how many of them were cut.
func Texts(n, cut int) string {
	text := report.Count(int64(n)) + " texts"
	if cut > 0 {
		text += ", " + report.Count(int64(cut)) + " of them cut to the model's length"
	}
	return text
}

// latencyTexts are measured one at a time, after a few that warm caches.
const (
	latencyTexts  = 200
	latencyWarmup = 5
)

// MeasureLatency is the time of predictions of one text each, in milliseconds.
func MeasureLatency(ctx context.Context, p *policy.Classifier, ids [][]int32) ([]float64, error) {
	var ms []float64
	for i := range min(len(ids), latencyTexts) + latencyWarmup {
		began := time.Now()
		if _, err := p.Probs(ctx, ids[i%len(ids):][:1]); err != nil {
			return nil, err
		}
		if i >= latencyWarmup {
			ms = append(ms, float64(time.Since(began).Microseconds())/1000)
		}
	}
	return ms, nil
}

// launcherFile is the variable by which torchrun names a file of each process it starts. It shows what the first one that
// fails has written there as the cause.
const launcherFile = "TORCHELASTIC_ERROR_FILE"

// TellLauncher writes why the process has failed where its launcher looks for it, if there is one that does.
func TellLauncher(environ []string, why string) error {
	for _, pair := range environ {
		path, ours := strings.CutPrefix(pair, launcherFile+"=")
		if !ours || path == "" {
			continue
		}
		data, err := json.Marshal(map[string]any{"message": map[string]any{
			"message":   why,
			"extraInfo": map[string]string{"py_callstack": why, "timestamp": strconv.FormatInt(time.Now().Unix(), 10)},
		}})
		if err == nil {
			err = os.WriteFile(path, data, 0o644)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", launcherFile, err)
		}
	}
	return nil
}
