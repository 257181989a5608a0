/* Keys and values of one head in 2 bits, and what this does to attention.
 *
 *   cc example.c $(pkg-config --cflags --libs kvtools) -lm */
#include <kvtools/seq.h>

#include <math.h>
#include <stdio.h>

enum { N = 512, DIM = 64 };

int main(void)
{
    static const struct kv_shape shape = {.n_layers = 1,
                                          .n_heads = 1,
                                          .n_kv_heads = 1,
                                          .head_dim = DIM,
                                          .attn_scale = 0.125f};
    static float k[N * DIM], v[N * DIM];
    float q[DIM], out[DIM], exact[DIM];
    const struct kv_tokens tokens = {.n = N, .k = k, .v = v};
    const struct kv_attend_job job = {.view =
                                          kv_shape_view(&shape, N, N - 1, 1),
                                      .q = q,
                                      .out = exact,
                                      .q_rows = 1,
                                      .k = {.unquantized = k},
                                      .v = {.unquantized = v}};
    struct kv_seq *seq = kv_seq_new(&(struct kv_seq_plan){.n_layers = 1});
    double error = 0, norm = 0;
    struct kv_bits bits = {0};
    struct kv_codecs *codecs;
    struct kv_spec spec;
    struct kv_err e;

    for (int i = 0; i < N * DIM; i++) {
        k[i] = q[i % DIM] = sinf((float)i * (float)i);
        v[i] = cosf((float)i * (float)i);
    }
    if (kv_spec_parse(&spec, "kivi:b2g32r0", &e) ||
        kv_spec_fit(&spec, &shape, &e) ||
        kv_codecs_new(&codecs, &spec, &shape, 0, 1, NULL, &e) ||
        kv_seq_open(seq, kv_codecs_at(codecs, 0), &e) ||
        kv_seq_append(seq, 0, &tokens, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    kv_seq_attend(seq, 0, 1, q, out); /* the newest token's query */
    kv_attend_c(&job);
    for (int i = 0; i < DIM; i++) {
        error += pow((double)out[i] - (double)exact[i], 2);
        norm += pow((double)exact[i], 2);
    }
    kv_seq_bits(seq, 0, KV_K, &bits);
    kv_seq_bits(seq, 0, KV_V, &bits);
    printf("%s: %.3f bits a value, attention off by %.3f of its norm\n",
           spec.text, 8 * bits.bytes / bits.values, sqrt(error / norm));
    kv_seq_free(seq);
    kv_codecs_free(codecs);
    return 0;
}
