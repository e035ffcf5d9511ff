package app

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// samplingOptions are the options of commands that sample text.
type samplingOptions struct {
	MaxNew            int     `option:"max_new_tokens" default:"256" range:"[1,1048576]" help:"maximum tokens per completion"`
	Temperature       float64 `option:"temperature" default:"1" range:"[0,1000000]" help:"sampling temperature; 0 = greedy"`
	TopP              float64 `option:"top_p" range:"[0,1]" help:"nucleus sampling: sample from the top tokens with this total probability; 0 = off"`
	TopK              int     `option:"top_k" range:"[0,1048576]" help:"sample from the k most likely tokens; 0 = off"`
	MinP              float64 `option:"min_p" range:"[0,1]" help:"drop tokens below this fraction of the top token's probability; 0 = off"`
	RepetitionPenalty float64 `option:"repetition_penalty" range:"[0,1000000]" help:"penalty on tokens already in the context, above 1 to discourage repetition; 0 = off"`
	Seed              uint64  `option:"seed" default:"42" help:"random seed; completion j of prompt i depends only on it, not on the batch"`
}

func (o samplingOptions) torch() torch.Sampling {
	return torch.Sampling{Temperature: o.Temperature, TopK: o.TopK, TopP: o.TopP, MinP: o.MinP, RepetitionPenalty: o.RepetitionPenalty}
}

// generateOptions are the options of generate that say what to generate.
type generateOptions struct {
	samplingOptions
	Samples   int `option:"n" default:"1" range:"[1,1048576]" help:"completions per prompt"`
	BatchSize int `option:"batch_size" default:"32" range:"[1,65536]" help:"completions to generate at the same time; does not change results"`
}

func generateCommand() *cli.Command {
	var o generateOptions
	return &cli.Command{
		Name:  "generate",
		Usage: "generate completions with a language model",
		Description: `With --input FILE, rows have a prompt (text), prompt_ids or messages. Output rows keep the fields and the order of the
input and add completion, completion_ids, logprobs (at temperature 1, without filters) and finish_reason (stop or
length). A stopped command keeps finished rows in FILE.partial; --resume continues from there.

Without --input, each line of standard input is a prompt, and its completion is streamed to standard output.

If the model has a chat template, each prompt becomes a user message; --raw sends prompts unchanged.`,
		Flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "input", Usage: "file of prompts: json, jsonl, csv or parquet, optionally gzipped"},
			&cli.StringFlag{Name: "output", Usage: "JSON Lines file to write", DefaultText: "standard output"},
		}, config.OptionFlags(options.MustRead(&o)), []cli.Flag{
			&cli.StringSliceFlag{Name: "stop", Usage: "stop before this text; repeatable"},
			&cli.BoolFlag{Name: "resume", Usage: "continue a stopped command from FILE.partial, where FILE is --output"},
			&cli.BoolFlag{Name: "keep-newlines", Usage: "keep the line feed of standard input in the prompt, as the digits tasks train with it"},
			rawFlag(), ignoreGenerationFlag(),
			&cli.BoolFlag{Name: "truncate-prompts", Usage: "truncate long prompts at the start instead of rejecting them"},
		}, languageModelFlags()),
		Action: func(c *cli.Context) error { return generate(c, o) },
	}
}

func generate(c *cli.Context, given generateOptions) error {
	stops := c.StringSlice("stop")
	if slices.Contains(stops, "") {
		return shared.UsageErrorf("--stop: the text is empty")
	}
	return shared.OnThread(c, func(ctx context.Context) error {
		p, err := languageModel(c)
		if err != nil {
			return err
		}
		defer p.Close()
		sampler, err := p.NewSampler(given.BatchSize)
		if err != nil {
			return err
		}
		defer sampler.Close()
		fmt.Fprintln(c.App.ErrWriter, "rltrain: end tokens: "+shared.EOSNames(p))
		sampleAsModel(c, p, &given.samplingOptions)
		sayTemplate(c, p)
		o := policy.GenerateOptions{Samples: given.Samples, MaxNew: given.MaxNew, Stop: stops, Seed: given.Seed, Sampling: given.torch()}
		if c.String("input") == "" {
			for _, name := range []string{"output", "resume"} {
				if c.IsSet(name) {
					return shared.UsageErrorf("--%s needs --input FILE", name)
				}
			}
			return completeLines(ctx, c, p, sampler, o)
		}
		return generateFile(ctx, c, p, sampler, o)
	})
}

// promptRow is a row of input.
type promptRow struct {
	record dataset.Record
	ids    []int32
	cut    bool // truncated at the start
}

// tooLongError reports a prompt that leaves no room for a completion.
type tooLongError struct{ tokens, room, positions int }

func (e *tooLongError) Error() string {
	return fmt.Sprintf("prompt has %d tokens; at most %d fit into the context of %d tokens", e.tokens, e.room, e.positions)
}

// plainNumber formats a number without an exponent.
func plainNumber(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// eachPrompt reads the prompts of a file one by one. A prompt of more than room tokens is an error, or is truncated at the
// start if truncate is true. raw sends plain-text prompts unchanged.
func eachPrompt(path string, p *policy.CausalLM, raw bool, room int, truncate bool) iter.Seq2[promptRow, error] {
	return func(yield func(promptRow, error) bool) {
		for r, err := range dataset.Records(path) {
			row := promptRow{record: r}
			if err == nil {
				row, err = readPrompt(r, p, raw, room, truncate)
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}

func readPrompt(r dataset.Record, p *policy.CausalLM, raw bool, room int, truncate bool) (promptRow, error) {
	ids, err := promptIDs(r, p, raw)
	switch {
	case err != nil && strings.HasPrefix(err.Error(), r.Place()+": "):
		return promptRow{}, err
	case err != nil:
		return promptRow{}, fmt.Errorf("%s: %w", r.Place(), err)
	case len(ids) == 0:
		return promptRow{}, fmt.Errorf("%s: the prompt is empty", r.Place())
	case len(ids) > room && !truncate:
		return promptRow{}, fmt.Errorf("%s: %w", r.Place(), &tooLongError{len(ids), room, p.MaxLength()})
	case len(ids) > room:
		return promptRow{r, ids[len(ids)-room:], true}, nil
	}
	return promptRow{r, ids, false}, nil
}

// countPrompts checks and counts all rows before any work starts.
func countPrompts(path string, rows iter.Seq2[promptRow, error], check func(promptRow) error) (n, cut int, err error) {
	for row, err := range rows {
		if err == nil && check != nil {
			err = check(row)
		}
		if err != nil {
			return 0, 0, err
		}
		n++
		if row.cut {
			cut++
		}
	}
	if n == 0 {
		return 0, 0, fmt.Errorf("%s has no rows", path)
	}
	return n, cut, nil
}

// promptIDs returns the tokens of a row's prompt_ids, prompt or messages. A prompt that is text becomes a user's message
// where the model has a chat template, unless raw is set.
func promptIDs(r dataset.Record, p *policy.CausalLM, raw bool) ([]int32, error) {
	if value, ok := r.Fields.Get("prompt_ids"); ok {
		return tokenIDs("prompt_ids", value, p.VocabSize())
	}
	layout, err := chat.Detect(r, chat.PromptOnly)
	if err != nil {
		return nil, fmt.Errorf("%w, or prompt_ids", err)
	}
	e, err := layout.Example(r)
	if err != nil {
		return nil, err
	}
	if p.Templates != nil && !raw && !e.Prompt.Conversational() {
		e.Prompt = chat.Content{Messages: policy.Conversation([]envs.Message{userMessage(e.Prompt.Text)})}
	}
	return p.EncodePrompt(e)
}

// tokenIDs reads a list of token ids below limit.
func tokenIDs(field string, value any, limit int) ([]int32, error) {
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("%s is not a list of token ids", field)
	}
	ids := make([]int32, len(list))
	for i, v := range list {
		id, ok := v.(int64)
		if !ok || id < 0 || id >= int64(limit) {
			return nil, fmt.Errorf("%s[%d]: %v is not a token id between 0 and %d", field, i, v, limit-1)
		}
		ids[i] = int32(id)
	}
	return ids, nil
}

// generated has the fields that output rows add to input rows.
type generated struct {
	Completion    string       `json:"completion"`
	CompletionIDs []int32      `json:"completion_ids"`
	LogProbs      []float32    `json:"logprobs"`
	FinishReason  torch.Reason `json:"finish_reason"`
}

func generateFile(ctx context.Context, c *cli.Context, p *policy.CausalLM, sampler *policy.Sampler, o policy.GenerateOptions) error {
	if o.MaxNew >= p.MaxLength() {
		return shared.UsageErrorf("--max-new-tokens: %d leaves no room for a prompt in the context of %d tokens", o.MaxNew, p.MaxLength())
	}
	if date, ok := resumedDate(c); ok && !c.IsSet("template-date") {
		p.Template.Now = date
	}
	rows := eachPrompt(c.String("input"), p, c.Bool("raw"), p.MaxLength()-o.MaxNew, c.Bool("truncate-prompts"))
	n, cut, err := countPrompts(c.String("input"), rows, nil)
	if long := (*tooLongError)(nil); errors.As(err, &long) {
		return fmt.Errorf("%w; shorten it, lower --max-new-tokens, or pass --truncate-prompts", err)
	}
	if err != nil {
		return err
	}
	if cut > 0 {
		fmt.Fprintf(c.App.ErrWriter, "rltrain: truncated %d of %d prompts at the start\n", cut, n)
	}
	g := &generation{sampler: sampler, options: o, date: p.Template.Now.Format(config.DateLayout), rows: rows, n: n, at: max(leastAtOnce, promptsAtOnce*c.Int("batch-size"))}
	if path := c.String("output"); path != "" && !notRegular(path) {
		return g.toFile(ctx, c, path)
	}
	if c.Bool("resume") {
		return shared.UsageErrorf("--resume: needs --output FILE")
	}
	return toOutput(c, func(out io.Writer) error { return g.run(ctx, c, out, 0, func() error { return nil }) })
}

// toOutput calls write with --output, which is written atomically, or with standard output.
func toOutput(c *cli.Context, write func(io.Writer) error) (err error) {
	path := c.String("output")
	if path == "" {
		out := bufio.NewWriter(c.App.Writer)
		return cmp.Or(write(out), out.Flush())
	}
	file, err := outfile.Create(path, 0o644)
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	defer file.Close()
	out := bufio.NewWriter(file)
	if err := write(out); err != nil {
		return err
	}
	if err := cmp.Or(out.Flush(), file.Commit()); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}

// writeRow writes a row with the fields of added, which replace fields of the same name.
func writeRow(out io.Writer, row dataset.Object, added any) error {
	data, err := json.Marshal(added)
	if err != nil {
		return err
	}
	more, err := dataset.Parse(string(data))
	if err != nil {
		return err
	}
	for _, field := range more.(dataset.Object) {
		row = row.With(field.Name, field.Value)
	}
	line, err := row.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = out.Write(append(line, '\n'))
	return err
}

// completeLines streams a completion for each line of standard input.
func completeLines(ctx context.Context, c *cli.Context, p *policy.CausalLM, sampler *policy.Sampler, o policy.GenerateOptions) error {
	if o.Samples != 1 {
		return shared.UsageErrorf("--n %d: needs --input FILE", o.Samples)
	}
	out := bufio.NewWriter(c.App.Writer)
	o.OnText = func(_, _ int, text string) {
		_, _ = out.WriteString(text)
		_ = out.Flush() // an error repeats with the line feed
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := make(chan line)
	go readLines(ctx, c.App.Reader, lines)
	for number := 1; ; number++ {
		batch, err := nextLines(ctx, lines, false)
		if err != nil || len(batch) == 0 {
			return err
		}
		for _, l := range batch {
			if l.err != nil {
				return fmt.Errorf("standard input, line %d: %w", number, l.err)
			}
			if c.Bool("keep-newlines") && l.text != "" {
				l.text += "\n"
			}
			ids, err := promptOf(c, p)(l.text)
			if err != nil {
				return fmt.Errorf("standard input, line %d: %w", number, err)
			}
			if len(ids) == 0 {
				fmt.Fprintln(out)
				continue
			}
			if err := sampler.Generate(ctx, [][]int32{ids}, o, func(int, []policy.Completion) error {
				fmt.Fprintln(out)
				return out.Flush()
			}); err != nil {
				return fmt.Errorf("standard input, line %d: %w", number, err)
			}
		}
	}
}
