package app

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
)

// textTasks lists the tasks that train language models on texts.
func textTasks() []string {
	return tasksWhere(func(d envs.Definition) bool {
		_, records := d.Options().(envs.RecordSource)
		return records && !d.Preferences
	})
}

// textResults is the content of eval's --output for texts.
type textResults struct {
	Model   string `json:"model"`
	Dataset string `json:"dataset"`
	evaluate.TextScores
	Cut     int `json:"cut"`     // texts longer than --max-length
	Dropped int `json:"dropped"` // texts without a token to predict within it
	Null    int `json:"null"`    // rows with null instead of a text
}

// String returns the table that eval prints.
func (r textResults) String() string {
	var rows [][]string
	for _, one := range []struct {
		name string
		of   rl.Estimate
	}{{"loss, nats per token", r.Loss}, {"perplexity", r.Perplexity}, {"token accuracy", r.Accuracy}} {
		rows = append(rows, []string{one.name, fmt.Sprintf("%.4f", one.of.Value), fmt.Sprintf("%.4f–%.4f", one.of.Interval[0], one.of.Interval[1])})
	}
	text := fmt.Sprintf("%s on %s: %s predicted in %s; of conversations the assistant's messages, of pairs the completions\n", r.Model, r.Dataset,
		report.Plural(r.Tokens, "token"), report.Plural(r.N, "text"))
	for _, one := range []struct {
		n    int
		what string
	}{{r.Cut, "%s cut at --max-length\n"}, {r.Dropped, "%s skipped: no token to predict within --max-length\n"}, {r.Null, "%s skipped: null instead of a text\n"}} {
		if one.n > 0 {
			text += fmt.Sprintf(one.what, report.Plural(one.n, "row"))
		}
	}
	return text + rl.FewRows(r.N, "texts") + "\n" + report.RenderTable([]string{"metric", "value", "95 % CI"}, rows)
}

// textRow is a line of --output-rows.
type textRow struct {
	Text     string  `json:"text"` // as the model reads it
	Tokens   int     `json:"tokens"`
	Loss     float64 `json:"loss"`
	Accuracy float64 `json:"mean_token_accuracy"`
}

// evalChat measures a language model on texts or conversations.
func evalChat(c *cli.Context) error {
	model, data := c.String("model"), c.String("dataset")
	if err := onlyFlags(c, "to task "+c.String("task"), []string{"task", "dataset", "max-samples", "max-length", "output", "output-rows"}, languageModelFlags()); err != nil {
		return err
	}
	if model == "" || data == "" {
		return shared.UsageErrorf("eval --task %s needs --model DIR and --dataset FILE", c.String("task"))
	}
	return intoResults(c, func(ctx context.Context) (fmt.Stringer, error) {
		r := textResults{Model: model, Dataset: data}
		p, err := languageModel(c)
		if err != nil {
			return r, err
		}
		defer p.Close()
		rows, err := preferenceRows(ctx, c, data, chat.LanguageModelling, chat.PromptCompletion)
		if err != nil {
			return r, err
		}
		found, err := p.Encode(rows, policy.EncodeOptions{MaxLength: c.Int("max-length"), CompletionOnly: true, AssistantOnly: true})
		if err != nil {
			return r, err
		}
		r.Cut, r.Dropped, r.Null = found.Cut, found.Dropped, found.Null
		samples := policy.Samples(found.Sequences)
		if r.TextScores, err = evaluate.ScoreTexts(ctx, p, samples); err != nil || c.String("output-rows") == "" {
			return r, err
		}
		var all []textRow
		for i, x := range samples {
			text, err := p.Tokenizer.Decode(x.Tokens, false)
			if err != nil {
				return r, err
			}
			one := r.Texts[i]
			all = append(all, textRow{text, one.Tokens, one.Loss / float64(one.Tokens), float64(one.Right) / float64(one.Tokens)})
		}
		return r, saveRows(c.String("output-rows"), all)
	})
}
