package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
)

func scoreCommand() *cli.Command {
	return &cli.Command{
		Name:  "score",
		Usage: "compute log-probabilities of given completions",
		Description: `Rows of --input have a prompt (text), prompt_ids or messages, and a completion (text) or completion_ids. Output rows
keep the input fields and add completion_ids, sum_logprob and, for each token, logprobs, entropy and rank (the number of
more likely tokens). A text completion has no end token; pass completion_ids to include it.`,
		Flags: append([]cli.Flag{
			rawFlag(),
			&cli.StringFlag{Name: "input", Usage: "file of prompts and completions: json, jsonl, csv or parquet, optionally gzipped"},
			&cli.StringFlag{Name: "output", Usage: "JSON Lines file to write", DefaultText: "standard output"},
		}, languageModelFlags()...),
		Action: score,
	}
}

// scoredRow has the fields that output rows add to input rows.
type scoredRow struct {
	CompletionIDs []int32   `json:"completion_ids"`
	LogProbs      []float32 `json:"logprobs"`
	Entropy       []float32 `json:"entropy"`
	Rank          []int64   `json:"rank"`
	SumLogProb    float64   `json:"sum_logprob"`
}

// scoreRows is the number of rows per batch.
const scoreRows = 64

func score(c *cli.Context) error {
	if c.String("input") == "" {
		return shared.UsageErrorf("score needs --input FILE with prompts and completions")
	}
	return shared.OnThread(c, func(ctx context.Context) error {
		p, err := languageModel(c)
		if err != nil {
			return err
		}
		defer p.Close()
		sayTemplate(c, p)
		rows := eachPrompt(c.String("input"), p, c.Bool("raw"), p.MaxLength()-1, false)
		n, _, err := countPrompts(c.String("input"), rows, func(r promptRow) error {
			_, err := completionOf(r, p)
			return err
		})
		if err != nil {
			return err
		}
		return toOutput(c, func(out io.Writer) error {
			bar := report.NewConsole(c.App.Writer, c.App.ErrWriter, time.Now).Bar("score", "rows", 0, n)
			defer bar.Done()
			var batch []promptRow
			done := 0
			for row, err := range rows {
				if err != nil {
					return err
				}
				batch = append(batch, row)
				if done++; len(batch) < scoreRows && done < n {
					continue
				}
				if err := scoreBatch(ctx, p, batch, out); err != nil {
					return err
				}
				batch = batch[:0]
				bar.Set(done, "")
			}
			return nil
		})
	})
}

// scoreBatch scores rows in one batch.
func scoreBatch(ctx context.Context, p *policy.CausalLM, batch []promptRow, out io.Writer) error {
	prompts, completions := make([][]int32, len(batch)), make([][]int32, len(batch))
	for i, r := range batch {
		var err error
		prompts[i] = r.ids
		if completions[i], err = completionOf(r, p); err != nil {
			return err
		}
	}
	scored, err := p.Score(ctx, prompts, completions, 1)
	if err != nil {
		return err
	}
	for i, s := range scored {
		sum := 0.0
		for _, p := range s.LogProbs {
			sum += float64(p)
		}
		if err := writeRow(out, batch[i].record.Fields, scoredRow{s.IDs, s.LogProbs, s.Entropy, s.Rank, sum}); err != nil {
			return err
		}
	}
	return nil
}

// completionOf returns the completion of a row after checking that prompt and completion fit into the context.
func completionOf(r promptRow, p *policy.CausalLM) ([]int32, error) {
	ids, err := completionIDs(r.record, p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.record.Place(), err)
	}
	if n := len(r.ids) + len(ids); n > p.MaxLength() {
		return nil, fmt.Errorf("%s: %d tokens do not fit into the context of %d tokens", r.record.Place(), n, p.MaxLength())
	}
	return ids, nil
}

// completionIDs returns the tokens of a row's completion_ids or completion.
func completionIDs(r dataset.Record, p *policy.CausalLM) (ids []int32, err error) {
	if value, ok := r.Fields.Get("completion_ids"); ok {
		ids, err = tokenIDs("completion_ids", value, p.VocabSize())
	} else if value, ok := r.Fields.Get("completion"); ok {
		text, isText := value.(string)
		if !isText {
			return nil, errors.New("completion is not a text")
		}
		ids, err = p.Tokenizer.EncodeRaw(text, false)
	} else {
		return nil, fmt.Errorf("no completion or completion_ids; the row has %v", slices.Sorted(slices.Values(r.Fields.Names())))
	}
	if err == nil && len(ids) == 0 {
		err = errors.New("the completion is empty")
	}
	return ids, err
}
