package hub

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
)

func TestEnvironment(t *testing.T) {
	newFake(t)
	user := t.TempDir()
	for _, tc := range []struct {
		set   map[string]string
		cache string
	}{
		{nil, "USER/.cache/huggingface/hub"},
		{map[string]string{"XDG_CACHE_HOME": "/xdg"}, "/xdg/huggingface/hub"},
		{map[string]string{"XDG_CACHE_HOME": "/xdg", "HF_HOME": "~/hf"}, "USER/hf/hub"},
		{map[string]string{"HF_HOME": "$BASE/${BASE}/$NONE"}, "/base/base/$NONE/hub"},
		{map[string]string{"HF_HOME": "/hf", "HUGGINGFACE_HUB_CACHE": "/old"}, "/old"},
		{map[string]string{"HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "/new"}, "/new"},
	} {
		for _, variable := range []string{"XDG_CACHE_HOME", "HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE"} {
			t.Setenv(variable, tc.set[variable])
		}
		t.Setenv("HOME", user)
		t.Setenv("BASE", "/base")
		if _, cache, err := folders(); err != nil || cache != filepath.Clean(strings.Replace(tc.cache, "USER", user, 1)) {
			t.Errorf("%v: %s, %v", tc.set, cache, err)
		}
	}
	t.Setenv("HOME", "") // as in services and containers
	t.Setenv("HF_HUB_CACHE", "/new")
	if _, cache, err := folders(); err != nil || cache != "/new" {
		t.Errorf("without $HOME: %s, %v", cache, err)
	}
	if cache, err := CacheDir(); err != nil || !filepath.IsAbs(cache) {
		t.Errorf("without $HOME: %s, %v", cache, err)
	}
	for _, tc := range []struct {
		set                   map[string]string
		model, dataset, token string
	}{
		{nil, "", "", "of the file"},
		{map[string]string{"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE", "HF_HUB_OFFLINE", "of the file"},
		{map[string]string{"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "1"}, "", "", "of the file"},
		{map[string]string{"TRANSFORMERS_OFFLINE": "true"}, "TRANSFORMERS_OFFLINE", "TRANSFORMERS_OFFLINE", "of the file"},
		{map[string]string{"HF_DATASETS_OFFLINE": "On"}, "", "HF_DATASETS_OFFLINE", "of the file"},
		{map[string]string{"HF_TOKEN": " new\n", "HUGGING_FACE_HUB_TOKEN": "old"}, "", "", "new"},
		{map[string]string{"HUGGING_FACE_HUB_TOKEN": "old"}, "", "", "old"},
		{map[string]string{"HF_TOKEN": "new", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "YES"}, "", "", ""},
		{map[string]string{"HF_TOKEN_PATH": "/none"}, "", "", ""},
	} {
		home := t.TempDir()
		leave(t, filepath.Join(home, "token"), "of the file\n")
		for _, variable := range []string{
			"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "HF_TOKEN_PATH",
		} {
			t.Setenv(variable, tc.set[variable])
		}
		got, _, err := userToken(home)
		expect.True(t, err == nil && got == tc.token, "%v: token %q, %v", tc.set, got, err)
		m, d := offline(modelKind), offline(datasetKind)
		expect.True(t, m == tc.model && d == tc.dataset, "%v: offline by %q and %q", tc.set, m, d)
	}
	t.Setenv("HF_HUB_DOWNLOAD_TIMEOUT", "3")
	t.Setenv("HF_ENDPOINT", "https://mirror/hf/")
	s, err := new(Client).session(repo{modelKind, "org/name", "main"})
	if err != nil || s.Endpoint != "https://mirror/hf" || s.bytesTimeout != 3*time.Second || s.answerTimeout != 10*time.Second {
		t.Errorf("%+v, %v", s, err)
	}
	for variable, bad := range map[string]string{"HF_ENDPOINT": "mirror", "HF_HUB_ETAG_TIMEOUT": "soon", "HF_HUB_DOWNLOAD_TIMEOUT": "0", "HF_TOKEN_PATH": t.TempDir()} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv(variable, bad)
			_, err := new(Client).Model(t.Context(), "org/name", Weights)
			want := variable + " is "
			if variable == "HF_TOKEN_PATH" {
				want = "reading the token: "
			}
			wantError(t, variable, err, "model org/name: "+want)
		})
	}
}
