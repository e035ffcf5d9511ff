package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/cmd/rltrain/serve"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/internal/tinker"
	"github.com/rltrain/rltrain/torch"
)

// Kinds of checkpoints: their part of a path, and their type. Only those for training have the optimizer's state.
const (
	trainingKind = "weights"
	samplerKind  = "sampler_weights"
	externalKind = "external_weights"
)

var kinds = map[string]string{trainingKind: "training", samplerKind: "sampler", externalKind: "external"}

// checkpointFile describes a checkpoint in its folder.
const checkpointFile = "checkpoint.json"

// checkpoint is an adapter that clients saved by a name.
type checkpoint struct {
	Time     time.Time         `json:"time"`
	Expires  *time.Time        `json:"expires_at,omitempty"`
	Metadata map[string]string `json:"user_metadata,omitempty"`

	run        *run
	kind, name string
}

var names = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

func (c *checkpoint) dir() string  { return filepath.Join(c.run.dir, c.kind, c.name) }
func (c *checkpoint) path() string { return "tinker://" + c.run.ID + "/" + c.kind + "/" + c.name }

// checkpoint finds a checkpoint. One that has expired is removed.
func (t *Trainer) checkpoint(id, kind, name string) (*checkpoint, error) {
	t.lock.Lock()
	r := t.runs[id]
	t.lock.Unlock()
	c := &checkpoint{run: r, kind: kind, name: name}
	if r == nil || kinds[kind] == "" || !names.MatchString(name) {
		return nil, serve.Refuse(http.StatusNotFound, "path", "checkpoint tinker://%.200s/%.40s/%.200s not found", id, kind, name)
	}
	err := files.LoadJSON(filepath.Join(c.dir(), checkpointFile), c)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, serve.Refuse(http.StatusNotFound, "path", "checkpoint %s not found", c.path())
	case err != nil:
		return nil, err
	case c.Expires != nil && time.Now().After(*c.Expires):
		_ = os.RemoveAll(c.dir()) // tried again by the next request
		return nil, serve.Refuse(http.StatusNotFound, "path", "checkpoint %s expired at %s", c.path(), c.Expires.Format(time.RFC3339))
	}
	return c, nil
}

// at finds the checkpoint of a path.
func (t *Trainer) at(path string) (*checkpoint, error) {
	rest, ok := strings.CutPrefix(path, "tinker://")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 3 {
		return nil, serve.Refuse(http.StatusBadRequest, "path", "path %.200q is not tinker://MODEL/weights/NAME or tinker://MODEL/sampler_weights/NAME", path)
	}
	return t.checkpoint(parts[0], parts[1], parts[2])
}

// checkpoints are those of a run, oldest first.
func (t *Trainer) checkpoints(r *run) (all []*checkpoint) {
	for kind := range kinds {
		entries, err := os.ReadDir(filepath.Join(r.dir, kind))
		if err != nil {
			continue // there are none
		}
		for _, e := range entries {
			if c, err := t.checkpoint(r.ID, kind, e.Name()); err == nil {
				all = append(all, c)
			}
		}
	}
	slices.SortFunc(all, func(a, b *checkpoint) int {
		if c := a.Time.Compare(b.Time); c != 0 {
			return c
		}
		return strings.Compare(a.path(), b.path())
	})
	return all
}

// card is a checkpoint as the API describes it.
func (c *checkpoint) card() map[string]any {
	size := int64(0)
	entries, _ := os.ReadDir(c.dir()) // it may have just been removed
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			size += info.Size()
		}
	}
	return map[string]any{
		"checkpoint_id": c.kind + "/" + c.name, "checkpoint_type": kinds[c.kind], "time": c.Time, "tinker_path": c.path(), "size_bytes": size,
		"public": false, "user_metadata": c.Metadata, "expires_at": c.Expires,
	}
}

// describe writes what the folder of a checkpoint says about it.
func (c *checkpoint) describe(dir string) error {
	return files.SaveJSON(filepath.Join(dir, checkpointFile), c)
}

// saveOrder asks for a checkpoint.
type saveOrder struct {
	addressed
	Name      *string           `json:"path"`
	TTL       *int              `json:"ttl_seconds"`
	Overwrite bool              `json:"overwrite"`
	Metadata  map[string]string `json:"user_metadata"`

	Sampling   *int            `json:"sampling_session_seq_id"` // of weights for a sampler without a name
	Recipients json.RawMessage `json:"age_encryption_recipients"`
}

// expiry is when a checkpoint of ttl seconds ends; nil is never.
func expiry(ttl *int) (*time.Time, error) {
	if ttl == nil {
		return nil, nil
	}
	if err := within("ttl_seconds", float64(*ttl), 1, 10*366*24*3600); err != nil {
		return nil, err
	}
	end := time.Now().UTC().Add(time.Duration(*ttl) * time.Second)
	return &end, nil
}

// save writes a checkpoint.
func (r *run) save(ctx context.Context, o saveOrder, kind string) (tinker.Outcome, error) {
	c := &checkpoint{Time: time.Now().UTC(), Metadata: o.Metadata, run: r, kind: kind, name: fmt.Sprintf("step-%s", time.Now().UTC().Format("20060102-150405.000"))}
	if o.Name != nil {
		c.name = *o.Name
	}
	var err error
	if c.Expires, err = expiry(o.TTL); err != nil {
		return nil, mistake{err}
	}
	if len(o.Recipients) > 0 && string(o.Recipients) != "null" {
		return nil, mistake{errors.New("age_encryption_recipients is not supported")}
	}
	if !names.MatchString(c.name) {
		return nil, mistake{fmt.Errorf("path %.200q is not a name of up to 128 letters, digits, dots, dashes and underscores", c.name)}
	}
	if _, err := r.trainer.checkpoint(r.ID, kind, c.name); err == nil && !o.Overwrite {
		return nil, mistake{fmt.Errorf("checkpoint %s exists; choose another name or pass overwrite", c.path())}
	}
	fresh := filepath.Join(r.dir, kind, "."+c.name+".new")
	err = r.ask(ctx, func() error {
		if err := os.RemoveAll(fresh); err != nil {
			return err
		}
		return outfile.Folder(fresh, func(dir string) error {
			if kind != trainingKind {
				err = r.policy.SaveAdapter(dir)
			} else {
				err = r.state(struct{}{}).Save(dir)
			}
			if err != nil {
				return err
			}
			return c.describe(dir)
		})
	})
	if err == nil {
		err = errors.Join(os.RemoveAll(c.dir()), os.Rename(fresh, c.dir()))
	}
	if err != nil {
		return nil, err
	}
	r.trainer.forget(c.dir())
	return tinker.Reply{"type": "save_" + kindOfSave[kind], "path": c.path()}, nil
}

// kindOfSave names the requests.
var kindOfSave = map[string]string{trainingKind: "weights", samplerKind: "weights_for_sampler", externalKind: "weights_external"}

// load puts the weights of a checkpoint, and with optimizer the moments, into a run.
func (r *run) load(ctx context.Context, path string, optimizer bool) (tinker.Outcome, error) {
	c, err := r.trainer.at(path)
	switch {
	case err != nil:
		return nil, mistake{err}
	case optimizer && c.kind != trainingKind:
		return nil, mistake{fmt.Errorf("checkpoint %s has no optimizer state; load its weights alone", c.path())}
	case c.run.Rank != r.Rank || c.run.Attention != r.Attention || c.run.MLP != r.MLP || c.run.BaseModel != r.BaseModel:
		return nil, mistake{fmt.Errorf("checkpoint %s is of another kind of adapter: rank %d (train_attn %t, train_mlp %t) of %s", c.path(), c.run.Rank, c.run.Attention, c.run.MLP, c.run.BaseModel)}
	}
	err = r.ask(ctx, func() error {
		r.trainer.release()
		r.gradient = false
		r.reset()
		if err := torch.ZeroGrad(r.policy.Params()); err != nil {
			return err
		}
		if optimizer {
			return r.state(&struct{}{}).Restore(c.dir())
		}
		defer r.policy.Changed()
		return r.policy.LoadWeights(c.dir())
	})
	if err != nil {
		return nil, err
	}
	return tinker.Reply{"type": "load_weights", "path": path, "model_id": r.ID}, nil
}
