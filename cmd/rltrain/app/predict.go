package app

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl/policy"
)

const (
	predictLines = 32      // maximum lines per batch
	maxLine      = 1 << 20 // bytes
)

// predictOptions say what predict prints.
type predictOptions struct {
	Top       int     `option:"top" default:"1" range:"[1,)" help:"number of labels to print per line, most likely first"`
	JSON      bool    `option:"json" help:"print JSON Lines; a blank line prints null"`
	Input     string  `option:"input" arg:"FILE" help:"rows to classify: csv, json, jsonl or parquet; without it the lines of standard input"`
	Column    string  `option:"text_column" default:"text" help:"column of --input with the text"`
	Output    string  `option:"output" arg:"FILE" help:"JSON Lines file to write, with --input; without it standard output"`
	Rejection float64 `option:"rejection" range:"[0,1]" help:"print (rejected) instead of a label below this probability; see eval --out-of-scope-label (0 = off)"`
}

func predictCommand() *cli.Command {
	var o predictOptions
	return &cli.Command{
		Name:  "predict",
		Usage: "classify lines of standard input, or the rows of a file",
		Description: `Prints label and probability, tab-separated, for each line in order. Blank and unreadable lines print a blank line;
after an unreadable line the exit code is 1. Predictions are printed as soon as lines arrive.

With --input FILE it writes each row as JSON with the fields predicted and probability:

   rltrain predict --model models/intent_classifier_rl --input tickets.csv --text-column body --output labelled.jsonl

A decision model, or any chat model, answers the typed questions of rows with state and questions (field answers).`,
		Flags: append([]cli.Flag{
			modelFlag(),
			dtypeFlag(),
		}, append(config.OptionFlags(options.MustRead(&o)), config.Flags("threads", "device")...)...),
		Action: func(c *cli.Context) error { return predict(c, o) },
	}
}

func predict(c *cli.Context, o predictOptions) error {
	dir, err := model(c)
	if err != nil {
		return err
	}
	for _, name := range []string{"text-column", "output"} {
		if c.IsSet(name) && o.Input == "" {
			return shared.UsageErrorf("--%s: needs --input FILE", name)
		}
	}
	if o.Input != "" && o.JSON {
		return shared.UsageErrorf("--json: applies to lines of standard input; with --input the output is always JSON Lines")
	}
	decides, err := isDecider(c, dir)
	if err != nil {
		return err
	}
	if decides && o.Input != "" {
		return shared.OnThread(c, func(ctx context.Context) error {
			p, err := loadDecider(c, dir)
			if err != nil {
				return err
			}
			defer p.Close()
			return predictDecisions(ctx, c, p, o.Input)
		})
	}
	return shared.OnThread(c, func(ctx context.Context) error {
		policy, err := loadPolicy(c, dir)
		if err != nil {
			return err
		}
		defer policy.Close()
		if o.Top > len(policy.Labels) {
			return shared.UsageErrorf("--top: %d is out of range; the model has %d labels", o.Top, len(policy.Labels))
		}
		p := &predictor{policy: policy, out: bufio.NewWriter(c.App.Writer), predictOptions: o, warn: c.App.ErrWriter}
		input, regular := c.App.Reader, false
		if file, ok := input.(*os.File); ok {
			info, err := file.Stat()
			regular = err == nil && info.Mode().IsRegular()
			if o.Input == "" && term.IsTerminal(int(file.Fd())) {
				fmt.Fprintln(c.App.ErrWriter, "Type one text per line; Ctrl-D to end.")
			}
		}
		if o.Input != "" {
			err = p.file(ctx, c)
		} else {
			err = p.run(ctx, input, regular)
		}
		if p.cut > 0 {
			fmt.Fprintf(c.App.ErrWriter, "rltrain: truncated %d of %d texts to %d tokens\n", p.cut, p.texts, policy.MaxLength)
		}
		if err == nil && p.bad > 0 {
			err = fmt.Errorf("could not read %d of %d lines; they have blank predictions", p.bad, p.read)
		}
		return err
	})
}

// line is one line of input, or an error.
type line struct {
	text string
	err  error
}

// readLines sends the lines of r until ctx ends. It sends a line that is too long as an error and continues; any other error is the last.
func readLines(ctx context.Context, r io.Reader, lines chan<- line) {
	defer close(lines)
	send := func(l line) bool {
		select {
		case lines <- l:
			return true
		case <-ctx.Done():
			return false
		}
	}
	in := bufio.NewReaderSize(r, 64<<10)
	for first := true; ; first = false {
		text, err := readLine(in)
		if first {
			text = strings.TrimPrefix(text, "\ufeff")
		}
		if err == io.EOF || !send(line{text, err}) || err != nil && !errors.Is(err, errLongLine) {
			return
		}
	}
}

var errLongLine = fmt.Errorf("line is longer than %d bytes", maxLine)

// readLine reads a line without its line feed. It skips a line that is too long and returns errLongLine. At the end of the
// input it returns io.EOF.
func readLine(in *bufio.Reader) (string, error) {
	var text []byte
	for long := false; ; {
		part, err := in.ReadSlice('\n')
		long = long || len(text)+len(part) > maxLine
		if !long {
			text = append(text, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && (err != io.EOF || len(text) == 0 && !long):
			return "", err
		case long:
			return "", errLongLine
		}
		text, _ = bytes.CutSuffix(text, []byte("\n"))
		text, _ = bytes.CutSuffix(text, []byte("\r"))
		return string(text), nil
	}
}

// predictor classifies lines of text.
type predictor struct {
	predictOptions
	policy     *policy.Classifier
	out        *bufio.Writer
	read       int // lines
	texts, cut int // non-blank lines, and truncated ones among them
	bad        int // lines that could not be read
	warn       io.Writer
}

// run classifies every line of r. It batches the lines that have arrived. For a regular file it always waits for a full
// batch, so that results are reproducible to the last digit.
func (p *predictor) run(ctx context.Context, r io.Reader, regular bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := make(chan line, predictLines)
	go readLines(ctx, r, lines)
	for {
		batch, err := nextLines(ctx, lines, regular)
		if err != nil || len(batch) == 0 {
			return err
		}
		if err := p.answer(ctx, batch); err != nil {
			return err
		}
	}
}

// nextLines waits for a line and returns it with the lines that have already arrived, or with a full batch if wait is true.
// It returns no lines at the end of the input.
func nextLines(ctx context.Context, lines <-chan line, wait bool) (batch []line, err error) {
	for len(batch) < predictLines {
		if len(batch) > 0 && !wait {
			select {
			case l, ok := <-lines:
				if !ok {
					return batch, nil
				}
				batch = append(batch, l)
				continue
			default:
				return batch, nil
			}
		}
		select {
		case l, ok := <-lines:
			if !ok {
				return batch, nil
			}
			batch = append(batch, l)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return batch, nil
}

// answer prints one line for each line of batch, blank for one that cannot be read.
func (p *predictor) answer(ctx context.Context, batch []line) error {
	var ids [][]int32
	var blank []bool
	for _, l := range batch {
		p.read++
		empty := l.err == nil && strings.TrimSpace(l.text) == ""
		if !empty {
			encoded, cut, err := p.encode(l)
			if err != nil {
				p.bad++
				fmt.Fprintln(p.warn, "rltrain: "+shared.OneLine(fmt.Sprintf("standard input, line %d: %v", p.read, err)))
				empty = true
			} else {
				ids = append(ids, encoded)
				p.texts++
			}
			if cut {
				p.cut++
			}
		}
		blank = append(blank, empty)
	}
	probs, err := p.policy.Probs(ctx, ids)
	if err != nil {
		return err
	}
	for _, empty := range blank {
		var answer []float32
		if !empty {
			answer, probs = probs[0], probs[1:]
		}
		if err := p.print(answer); err != nil {
			return err
		}
	}
	return p.out.Flush()
}

func (p *predictor) encode(l line) (ids []int32, cut bool, err error) {
	if l.err != nil {
		return nil, false, l.err
	}
	return p.policy.EncodeText(l.text)
}

// scored is a label and its probability.
type scored struct {
	Label       string  `json:"label"`
	Probability float32 `json:"probability"`
}

// prediction is a line of --json.
type prediction struct {
	scored
	Rejected bool     `json:"rejected,omitempty"` // the probability is below --rejection
	Top      []scored `json:"top,omitempty"`      // with --top above 1
}

// rejected is printed instead of a label below --rejection.
const rejected = "(rejected)"

// plain removes tabs and line feeds from labels.
var plain = strings.NewReplacer("\t", " ", "\n", " ", "\r", " ")

// print writes the prediction for one line; nil probabilities mean a blank line.
func (p *predictor) print(probs []float32) error {
	if probs == nil {
		text := "\n"
		if p.JSON {
			text = "null\n"
		}
		_, err := p.out.WriteString(text)
		return err
	}
	best := p.best(probs)
	tooLow := p.rejects(best)
	if p.JSON {
		answer := prediction{scored: best[0], Rejected: tooLow}
		if p.Top > 1 {
			answer.Top = best
		}
		encoder := json.NewEncoder(p.out)
		encoder.SetEscapeHTML(false)
		return encoder.Encode(answer)
	}
	var cells []string
	if tooLow {
		best[0].Label = rejected
	}
	for _, s := range best {
		cells = append(cells, plain.Replace(s.Label), fmt.Sprintf("%.4f", s.Probability))
	}
	_, err := p.out.WriteString(strings.Join(cells, "\t") + "\n")
	return err
}

// best returns the --top most likely labels.
func (p *predictor) best(probs []float32) (best []scored) {
	for _, i := range ranked(probs)[:p.Top] {
		best = append(best, scored{p.policy.Labels[i], probs[i]})
	}
	return best
}

// rejects reports whether the most likely label is below --rejection.
func (p *predictor) rejects(best []scored) bool { return float64(best[0].Probability) < p.Rejection }

// ranked lists the classes by decreasing probability; ties keep their order.
func ranked(probs []float32) []int {
	order := make([]int, len(probs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(probs[j], probs[i]) })
	return order
}
