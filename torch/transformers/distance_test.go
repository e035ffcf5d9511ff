package transformers

import (
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

// TestEncodersRefuse: choices of encoders that the core does not have.
func TestEncodersRefuse(t *testing.T) {
	const deberta = `,"relative_attention":true,"share_att_key":true,"pos_att_type":"c2p|p2c","pad_token_id":0`
	for _, tt := range []struct{ kind, more, want string }{
		{"albert", `,"num_hidden_groups":2`, "num_hidden_groups 2 is not supported"},
		{"albert", `,"inner_group_num":3`, "inner_group_num 3 is not supported"},
		{"albert", `,"embedding_size":0`, "embedding_size 0 is not between"},
		{"mpnet", `,"relative_attention_num_buckets":16`, "relative_attention_num_buckets 16 is not supported"},
		{"mpnet", `,"pad_token_id":2`, "pad_token_id 2 is not supported"},
		{"deberta-v2", ``, "only relative_attention true"},
		{"deberta-v2", `,"relative_attention":true,"share_att_key":true,"pos_att_type":["c2p"]`, `pos_att_type "c2p|p2c" are supported`},
		{"deberta-v2", `,"relative_attention":true,"pos_att_type":"p2c|c2p"`, "share_att_key true"},
		{"deberta-v2", deberta + `,"conv_kernel_size":3`, "conv_kernel_size 3 is not supported"},
		{"deberta-v2", deberta + `,"embedding_size":8`, "embedding_size 8 is not supported"},
		{"deberta-v2", deberta + `,"attention_head_size":8`, "attention_head_size 8 is not supported"},
		{"deberta-v2", deberta + `,"pooler_hidden_act":"mish"`, `pooler_hidden_act "mish" is not supported`},
		{"deberta-v2", deberta + `,"position_buckets":100`, "position_buckets 100 do not fit 32 positions"},
	} {
		expect.Failure(parseConfig([]byte(small(tt.kind, tt.more)), encoders))(t, tt.want)
	}
}

// TestBuckets: distances of MPNet and of DeBERTa v3 (256 buckets, 512 positions), by their formulas.
func TestBuckets(t *testing.T) {
	for distance, want := range map[int]int{0: 0, 7: 7, 8: 8, -1: 17, 127: 15, 128: 15, 500: 15, -127: 31, -128: 31, -500: 31} {
		expect.Equal(t, want, mpnetBucket(distance), distance)
	}
	for distance, want := range map[int]int{0: 0, 128: 128, 129: 129, 511: 255, -128: -128, -300: -207, -511: -255} {
		expect.Equal(t, want, debertaBucket(distance, 256, 512), distance)
	}
}

func FuzzParseEncoderConfig(f *testing.F) {
	for kind := range encoders {
		f.Add([]byte(small(kind, `,"relative_attention":true,"share_att_key":true,"pos_att_type":"c2p|p2c","position_buckets":8`)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseConfig(data, encoders)
		if err != nil || c.bucketOf == nil || c.MaxPositionEmbeddings > 1<<12 {
			return
		}
		for distance := 1 - c.MaxPositionEmbeddings; distance < c.MaxPositionEmbeddings; distance++ {
			bucket := c.bucketOf(distance)
			expect.Require(t, bucket >= 0 && bucket < c.distanceRows, "bucket %d of %d for distance %d", bucket, c.distanceRows, distance)
		}
	})
}
