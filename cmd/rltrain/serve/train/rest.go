package train

import (
	"archive/tar"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rltrain/rltrain/cmd/rltrain/serve"
)

// restRoutes adds the routes that list and change runs and checkpoints.
func (t *Trainer) restRoutes() {
	const checkpoint = "/api/v1/training_runs/{run}/checkpoints/{kind}/{name}"
	for pattern, answer := range map[string]func(r *http.Request) (any, error){
		"GET /api/v1/healthz": func(*http.Request) (any, error) {
			return map[string]any{"status": "ok"}, t.server.Stopping()
		},
		"GET /api/v1/get_server_capabilities":          t.capabilities,
		"GET /api/v1/training_runs":                    t.listRuns,
		"GET /api/v1/training_runs/{run}":              func(r *http.Request) (any, error) { return cardOf(t.listed(r)) },
		"GET /api/v1/training_runs/{run}/checkpoints":  t.listCheckpoints,
		"GET /api/v1/checkpoints":                      t.allCheckpoints,
		"GET /api/v1/sessions":                         t.listSessions,
		"GET /api/v1/sessions/{id}":                    t.getSession,
		"GET /api/v1/samplers/{id}":                    t.getSampler,
		"DELETE " + checkpoint:                         t.remove,
		"GET " + checkpoint + "/external_weights_urls": t.urls,
	} {
		t.server.Add(pattern, func(w http.ResponseWriter, r *http.Request) error {
			reply, err := answer(r)
			if err == nil {
				serve.WriteJSON(w, http.StatusOK, reply)
			}
			return err
		})
	}
	t.server.Add("PUT "+checkpoint+"/ttl", t.changeTTL)
	t.server.Add("GET "+checkpoint+"/archive", t.locate)
	t.server.Add("GET "+checkpoint+"/archive.tar", t.archive)
	t.server.Add("GET "+checkpoint+"/files/{file}", t.file)
}

func (t *Trainer) capabilities(*http.Request) (any, error) {
	return map[string]any{"loss_fn_masks": true, "supported_models": []any{
		map[string]any{"model_name": t.config.Name, "max_context_length": t.base.MaxLength(), "trainable": true, "sampleable": true},
	}}, nil
}

// page is the part of a list that a request asks for, with its place.
func page[T any](r *http.Request, all []T) ([]T, map[string]int, error) {
	at := map[string]int{"offset": 0, "limit": 100, "total_count": len(all)}
	for _, name := range []string{"offset", "limit"} {
		text := r.URL.Query().Get(name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return nil, nil, serve.Refuse(http.StatusBadRequest, name, "%s %.40q is not a whole number from 0", name, text)
		}
		at[name] = n
	}
	from := min(at["offset"], len(all))
	return all[from:min(from+min(at["limit"], len(all)), len(all))], at, nil
}

// sorted are the runs, newest first.
func (t *Trainer) sorted() []*run {
	all := t.allRuns()
	slices.SortFunc(all, func(a, b *run) int {
		if c := b.Created.Compare(a.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all
}

// listed is the run that a route names.
func (t *Trainer) listed(q *http.Request) (*run, error) {
	t.lock.Lock()
	defer t.lock.Unlock()
	if r := t.runs[q.PathValue("run")]; r != nil {
		return r, nil
	}
	return nil, serve.Refuse(http.StatusNotFound, "", "training run %.200q not found", q.PathValue("run"))
}

// cardOf describes a run as the API does.
func cardOf(r *run, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	r.lock.Lock()
	used, lost := r.used, r.lost
	r.lock.Unlock()
	metadata := map[string]string{}
	for name, value := range r.Metadata {
		metadata[name] = fmt.Sprint(value)
	}
	card := map[string]any{
		"training_run_id": r.ID, "base_model": r.BaseModel, "model_owner": "local", "is_lora": true, "lora_rank": r.Rank, "corrupted": lost,
		"last_request_time": used, "user_metadata": metadata,
	}
	for _, c := range r.trainer.checkpoints(r) { // the last one stays
		switch c.kind {
		case trainingKind:
			card["last_checkpoint"] = c.card()
		case samplerKind:
			card["last_sampler_checkpoint"] = c.card()
		}
	}
	return card, nil
}

func (t *Trainer) listRuns(q *http.Request) (any, error) {
	part, at, err := page(q, t.sorted())
	if err != nil {
		return nil, err
	}
	cards := []any{}
	for _, r := range part {
		card, _ := cardOf(r, nil) // never fails
		cards = append(cards, card)
	}
	return map[string]any{"training_runs": cards, "cursor": at}, nil
}

func cards(all []*checkpoint) []any {
	out := []any{}
	for _, c := range all {
		out = append(out, c.card())
	}
	return out
}

func (t *Trainer) listCheckpoints(q *http.Request) (any, error) {
	r, err := t.listed(q)
	if err != nil {
		return nil, err
	}
	return map[string]any{"checkpoints": cards(t.checkpoints(r))}, nil
}

func (t *Trainer) allCheckpoints(q *http.Request) (any, error) {
	var all []*checkpoint
	for _, r := range t.sorted() {
		all = append(all, t.checkpoints(r)...)
	}
	part, at, err := page(q, all)
	return map[string]any{"checkpoints": cards(part), "cursor": at}, err
}

func (t *Trainer) listSessions(q *http.Request) (any, error) {
	ids := []string{}
	t.lock.Lock()
	for id := range t.sessions {
		ids = append(ids, id)
	}
	t.lock.Unlock()
	slices.Sort(ids)
	part, _, err := page(q, ids)
	return map[string]any{"sessions": part}, err
}

func (t *Trainer) getSession(q *http.Request) (any, error) {
	id := q.PathValue("id")
	if err := t.touch(id); err != nil {
		return nil, err
	}
	runs, samplers := []string{}, []string{}
	for _, r := range t.sorted() {
		if r.Session == id {
			runs = append(runs, r.ID)
		}
	}
	t.lock.Lock()
	defer t.lock.Unlock()
	for _, s := range t.samplers {
		if strings.HasPrefix(s.id, id+":") {
			samplers = append(samplers, s.id)
		}
	}
	slices.Sort(samplers)
	return map[string]any{"training_run_ids": runs, "sampler_ids": samplers}, nil
}

func (t *Trainer) getSampler(q *http.Request) (any, error) {
	t.lock.Lock()
	defer t.lock.Unlock()
	s := t.samplers[q.PathValue("id")]
	if s == nil {
		return nil, serve.Refuse(http.StatusNotFound, "", "sampler %.200q not found", q.PathValue("id"))
	}
	reply := map[string]any{"sampler_id": s.id, "base_model": t.base.BaseModel}
	if s.path != "" {
		reply["model_path"] = s.path
	}
	return reply, nil
}

// named is the checkpoint that a route names.
func (t *Trainer) named(q *http.Request) (*checkpoint, error) {
	return t.checkpoint(q.PathValue("run"), q.PathValue("kind"), q.PathValue("name"))
}

func (t *Trainer) remove(q *http.Request) (any, error) {
	c, err := t.named(q)
	if err != nil {
		return nil, err
	}
	t.forget(c.dir())
	return map[string]any{}, os.RemoveAll(c.dir())
}

func (t *Trainer) changeTTL(w http.ResponseWriter, q *http.Request) error {
	c, err := t.named(q)
	if err != nil {
		return err
	}
	var o struct {
		TTL *int `json:"ttl_seconds"`
	}
	err = t.server.ReadBody(w, q, longestOrder, func(data []byte) error { return decode(data, &o) })
	if err != nil {
		return err
	}
	if c.Expires, err = expiry(o.TTL); err != nil {
		return serve.Refuse(http.StatusBadRequest, "ttl_seconds", "%v", err)
	}
	if err := c.describe(c.dir()); err != nil {
		return err
	}
	serve.WriteJSON(w, http.StatusOK, map[string]any{})
	return nil
}

// linkLife is how long links to checkpoints work.
const linkLife = time.Hour

// link is the address of a file of the checkpoint that a request names. Whoever has it needs no key.
func (t *Trainer) link(q *http.Request, file string, until time.Time) string {
	scheme := "http"
	if q.TLS != nil || q.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	path := fmt.Sprintf("/api/v1/training_runs/%s/checkpoints/%s/%s/%s", q.PathValue("run"), q.PathValue("kind"), q.PathValue("name"), file)
	end := strconv.FormatInt(until.Unix(), 10)
	return scheme + "://" + q.Host + path + "?until=" + end + "&signature=" + t.signature(path, end)
}

func (t *Trainer) signature(path, until string) string {
	sum := hmac.New(sha256.New, t.secret[:])
	fmt.Fprintf(sum, "%s\n%s", until, path)
	return hex.EncodeToString(sum.Sum(nil))
}

// signed says whether a request is of a link that still works.
func (t *Trainer) signed(r *http.Request) bool {
	until := r.URL.Query().Get("until")
	end, err := strconv.ParseInt(until, 10, 64)
	return err == nil && r.Method == http.MethodGet && time.Now().Unix() <= end &&
		hmac.Equal([]byte(r.URL.Query().Get("signature")), []byte(t.signature(r.URL.Path, until)))
}

// locate says where the archive of a checkpoint is.
func (t *Trainer) locate(w http.ResponseWriter, q *http.Request) error {
	if _, err := t.named(q); err != nil {
		return err
	}
	until := time.Now().Add(linkLife)
	w.Header().Set("Location", t.link(q, "archive.tar", until))
	w.Header().Set("Expires", until.UTC().Format(http.TimeFormat))
	w.WriteHeader(http.StatusFound)
	return nil
}

// urls says where the files of a checkpoint are.
func (t *Trainer) urls(q *http.Request) (any, error) {
	c, err := t.named(q)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(c.dir())
	all, until := map[string]string{}, time.Now().UTC().Add(linkLife)
	for _, e := range entries {
		if e.Name() != checkpointFile {
			all[e.Name()] = t.link(q, "files/"+e.Name(), until)
		}
	}
	return map[string]any{"urls": all, "expires": until}, err
}

func (t *Trainer) file(w http.ResponseWriter, q *http.Request) error {
	c, err := t.named(q)
	if err != nil {
		return err
	}
	name := q.PathValue("file")
	missing := serve.Refuse(http.StatusNotFound, "", "checkpoint %s has no file %.200q", c.path(), name)
	if !names.MatchString(name) {
		return missing
	}
	f, err := os.Open(filepath.Join(c.dir(), name))
	if err != nil {
		return missing
	}
	defer f.Close()
	http.ServeContent(w, q, name, c.Time, f)
	return nil
}

// archive sends the files of a checkpoint as a tar archive.
func (t *Trainer) archive(w http.ResponseWriter, q *http.Request) error {
	c, err := t.named(q)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(c.dir())
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-tar")
	out := tar.NewWriter(w)
	for _, e := range entries {
		if e.Name() == checkpointFile {
			continue
		}
		if err := add(out, filepath.Join(c.dir(), e.Name())); err != nil {
			return err // the client sees an archive without an end
		}
	}
	return out.Close()
}

func add(out *tar.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	header, err := tar.FileInfoHeader(info, "")
	if err == nil {
		header.Uname, header.Gname, header.Uid, header.Gid = "", "", 0, 0
		err = out.WriteHeader(header)
	}
	if err == nil {
		_, err = io.Copy(out, f)
	}
	return err
}
