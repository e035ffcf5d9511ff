package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/internal/smallfile"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/transformers/decision"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// LoadDecider loads what Save of a Decider wrote, or any chat model, by its folder or name.
func LoadDecider(ctx context.Context, client *hub.Client, model, dtype string, trainable bool, now time.Time) (*Decider, error) {
	found, err := client.Model(ctx, model, hub.Weights)
	if err != nil {
		return nil, err
	}
	data, err := smallfile.Read(filepath.Join(found.Dir, questionsFile))
	if errors.Is(err, fs.ErrNotExist) {
		if IsClassifierFolder(found.Dir) {
			return nil, fmt.Errorf("%s is a classifier of texts, which has no questions", model)
		}
		lm, err := LoadCausalLM(ctx, client, model, "", dtype, trainable)
		if err != nil {
			return nil, err
		}
		if !now.IsZero() {
			lm.Template.Now = now
		}
		p, err := NewScoringDecider(lm)
		if err != nil {
			lm.Close()
		}
		return p, err
	}
	if err != nil {
		return nil, err
	}
	value, err := jinja.ParseJSON(data)
	named, ok := value.(*jinja.Dict)
	if err != nil || !ok {
		return nil, fmt.Errorf("%s: want an object of questions: %w", filepath.Join(found.Dir, questionsFile), err)
	}
	questions, err := decision.ParseQuestions(named)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(found.Dir, questionsFile), err)
	}
	config, _, err := decision.Load(found.Dir)
	if err != nil {
		return nil, err
	}
	head, err := LoadClassifier(ctx, client, model, dtype, trainable)
	if err != nil {
		return nil, err
	}
	if n := len(HeadLabels(questions)); n != len(head.Labels) {
		head.Close()
		return nil, fmt.Errorf("%s: %d options for %d outputs", filepath.Join(found.Dir, questionsFile), n, len(head.Labels))
	}
	p := NewHeadDecider(head, questions)
	p.Asker.Config = config
	return p, nil
}

// Save writes a folder that LoadDecider and, of a language model, transformers' DecisionPipeline read.
func (p *Decider) Save(dir string) error {
	if err := p.decides.Save(dir); err != nil {
		return err
	}
	return p.SaveSettings(dir)
}

// SaveSettings writes decision.json and decision_template.jinja, and the questions of a head.
func (p *Decider) SaveSettings(dir string) error {
	if err := files.SaveJSON(filepath.Join(dir, decision.ConfigFile), p.Asker.Config); err != nil {
		return err
	}
	if p.lm != nil {
		template, err := p.Asker.Template()
		if err != nil {
			return err
		}
		return outfile.Write(filepath.Join(dir, decision.TemplateFile), []byte(template), 0o644)
	}
	text, err := jinja.JSON(p.Requests())
	if err != nil {
		return err
	}
	return outfile.Write(filepath.Join(dir, questionsFile), []byte(text+"\n"), 0o644)
}

// Requests are the questions of a head by name, as in a request.
func (p *Decider) Requests() *jinja.Dict {
	named := jinja.NewDict()
	for _, q := range p.questions {
		named.Set(q.Name, q.Request())
	}
	return named
}
