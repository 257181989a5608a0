/* --columns help: a line for each column of the tools' tables. */
#include "tools/columns_about.h"
#include "lib/base/opt.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* tool: the tool or table whose column this line describes; NULL: all tools
 * without a line of their own for the column. */
struct about {
    const char *tool, *name, *unit, *text;
};

/* results/README.md explains the columns in full. */
static const struct about lines[] = {
    /* conditions */
    {NULL, "tool", "", "the program"},
    {NULL, "version", "", "of kvtools"},
    {NULL, "spec", "", "the whole spec, fitted to the model"},
    {NULL, "scheme", "", "its scheme"},
    {NULL, "model", "", "the model's name"},
    {NULL, "model_hash", "", "of every byte of its files"},
    {NULL, "weights", "", "type of the weights"},
    {NULL, "text", "", "the text's file"},
    {NULL, "text_hash", "", "SHA-256 of the text, 16 digits"},
    {NULL, "ctx", "tokens", "of a window"},
    {NULL, "windows", "", "windows of the text, or sequences"},
    {NULL, "protocol", "", "what a query sees; compare rows of one"},
    {NULL, "calib_hash", "", "of the calibration"},
    {NULL, "calib_text", "", "the text that it saw"},
    {NULL, "calib_leak", "share", "of the text that it has seen"},
    {NULL, "device", "", "cpu, or the GPU's name"},
    {NULL, "level", "", "instruction set: c, avx2, avx512; cuda"},
    {NULL, "threads", "", "threads; no result depends on it"},
    {NULL, "seed", "", "of every random choice"},
    {NULL, "bos", "", "1 before the text, 2 at each window, 0 none"},
    {NULL, "special", "", "1: special tokens in the text are tokens"},
    {NULL, "gemm", "", "type of the products with weights"},
    {NULL, "places", "", "of the windows: first, or random, by seed"},
    /* bits */
    {NULL, "bits_nominal", "bits", "a value, as the paper counts"},
    {NULL, "bits", "bits", "a value: all bytes held"},
    {NULL, "bits_quantized", "bits", "a value: quantized tokens alone"},
    {NULL, "shared_bytes", "bytes", "the calibration's tables"},
    {NULL, "bits_total", "bits", "a value: bytes held, and the tables"},
    {NULL, "clipped", "values", "beyond fp16's range"},
    {NULL, "bits_declared", "", "yes: by a codec's own account"},
    {NULL, "kept", "share", "of the tokens, at the end"},
    {NULL, "side", "", "K, V or KV, both"},
    {NULL, "layer", "", "number from 0, or all"},
    {NULL, "head", "", "KV head, from 0"},
    /* kvppl */
    {NULL, "ppl", "", "perplexity: e to the mean loss"},
    {NULL, "ppl_se", "", "its error over windows (llama.cpp: tokens)"},
    {NULL, "nll", "nats", "loss of a token, mean over windows"},
    {NULL, "dnll", "nats", "loss less the base line's, by window"},
    {NULL, "dnll_se", "nats", "its error over windows"},
    {NULL, "bits_per_byte", "bits", "loss of a byte of the scored text"},
    {NULL, "word_ppl", "", "perplexity of a word of it"},
    {NULL, "kl_mean", "nats", "KL(base line || spec) of a token"},
    {NULL, "kl_se", "nats", "its error over windows"},
    {NULL, "kl_median", "nats", "the tokens' KL: middle one"},
    {NULL, "kl_p99", "nats", "the tokens' KL: percentile 99"},
    {NULL, "kl_max", "nats", "the tokens' KL: largest"},
    {NULL, "kl_p999", "nats", "the tokens' KL: percentile 99.9"},
    {NULL, "kl_p95", "nats", "the tokens' KL: percentile 95"},
    {NULL, "kl_p90", "nats", "the tokens' KL: percentile 90"},
    {NULL, "kl_p10", "nats", "the tokens' KL: percentile 10"},
    {NULL, "kl_p5", "nats", "the tokens' KL: percentile 5"},
    {NULL, "kl_p1", "nats", "the tokens' KL: percentile 1"},
    {NULL, "kl_jitter", "nats", "spread of kl_mean, K and V moved by 1e-6"},
    {NULL, "kl_slope", "nats", "rise of KL in 1,000 tokens"},
    {NULL, "kl_slope_se", "nats", "its error over windows"},
    {NULL, "kl_windows", "nats", "each window's KL, spaces between"},
    {NULL, "same_top1", "share", "of tokens whose first guess is the same"},
    {NULL, "same_top1_se", "share", "its error over windows"},
    {NULL, "agree", "tokens", "that a greedy run writes alike"},
    {NULL, "agree_se", "tokens", "its error"},
    {NULL, "dp_mean", "", "change of the token's probability, mean"},
    {NULL, "dp_rms", "", "root of the mean of its square"},
    {NULL, "tokens", "tokens", "scored"},
    {NULL, "seconds", "s", "of the row"},
    {NULL, "attn_pairs", "share", "of pairs that prompts attended to"},
    {NULL, "attn_seconds", "s", "of attention of prompts"},
    {NULL, "first_token", "", "of the bucket, from 1"},
    {NULL, "last_token", "", "of the bucket"},
    /* kvquant */
    {NULL, "mse", "", "mean squared error of a value"},
    {NULL, "sqnr_db", "dB", "signal over error"},
    {NULL, "rel_err", "", "norm of the error over the signal's"},
    {NULL, "cosine", "", "of what went in and what came back, mean"},
    {NULL, "max_err", "", "largest error"},
    {NULL, "logit_err", "", "mean squared error of attention's logits"},
    {NULL, "attn_kl", "nats", "KL of attention's weights, mean"},
    {NULL, "attn_rel_err", "", "relative error of attention's output"},
    {NULL, "rd_gap_db", "dB", "error over the rate-distortion bound"},
    {NULL, "check", "", "a part of the law of a codec"},
    {NULL, "holds", "", "yes or no"},
    {NULL, "what", "", "where it does not"},
    {NULL, "channel", "", "number from 0"},
    {NULL, "absmax", "", "largest magnitude"},
    {NULL, "mean", "", "of the channel"},
    {NULL, "std", "", "standard deviation"},
    {NULL, "skewness", "", "0 of a Gaussian"},
    {NULL, "kurtosis", "", "3 of a Gaussian"},
    {NULL, "singular", "", "singular value of the head"},
    {NULL, "book", "", "codebook, from 0"},
    {NULL, "centroids", "", "its entries"},
    {NULL, "used", "share", "of them that any vector takes"},
    {NULL, "index_ppl", "", "e to the entropy of the index"},
    /* kvattn */
    {NULL, "path_rel_err", "", "what the path adds to attn_rel_err"},
    {NULL, "lat_us_p50", "us", "a step of all sequences, median"},
    {NULL, "lat_us_p10", "us", "percentile 10"},
    {NULL, "lat_us_p90", "us", "percentile 90"},
    {NULL, "noisy", "", "1: p90 is over twice p10"},
    {NULL, "bytes_moved", "bytes", "caches, queries, outputs, once"},
    {NULL, "device_bytes", "bytes", "that the step reads of caches"},
    {NULL, "gb_s", "GB/s", "bytes_moved in lat_us_p50"},
    {NULL, "bw_share", "share", "of the memory's measured bandwidth"},
    {NULL, "speedup", "", "over f16, timed by turns"},
    {NULL, "speedup_unfused", "", "over f16 by cuBLAS and a softmax"},
    {NULL, "path", "", "what ran: int8, exact, codes, generic, ..."},
    {NULL, "encode_us_p50", "us", "GPU: encoding a block of all sequences"},
    {NULL, "inline_us_p50", "us", "that, then attention"},
    {NULL, "async_us_p50", "us", "both at a time"},
    {NULL, "quantize_us_p50", "us", "GPU: the newest 128 tokens into tiles"},
    {NULL, "decode_us_p50", "us", "GPU: decoding these to f32"},
    {NULL, "append_us", "us", "CPU: a token of all sequences into caches"},
    {NULL, "ops_products", "", "hack: integer products"},
    {NULL, "ops_correction", "", "what corrects them, as executed"},
    {NULL, "ops_formula", "", "the same by the paper's formulas"},
    {NULL, "ops_formula_parts", "", "with every partition counted"},
    {NULL, "ops_other", "", "operations that are in none of them"},
    {NULL, "norm_us", "us", "of the step: norms"},
    {NULL, "qkv_us", "us", "products for Q, K, V"},
    {NULL, "rope_us", "us", "RoPE"},
    {NULL, "attention_us", "us", "attention"},
    {NULL, "out_us", "us", "output product"},
    {NULL, "mlp_us", "us", "MLP"},
    {NULL, "head_us", "us", "logits"},
    {NULL, "tokens_s", "1/s", "tokens a second"},
    /* kvcalib */
    {NULL, "table", "", "a table of the calibration"},
    {NULL, "shape", "", "its dimensions"},
    {"kvcalib", "bytes", "bytes", "of the table"},
    {NULL, "error", "", "mean squared error on the training sample"},
    {NULL, "cost", "", "of the spec there"},
    {NULL, "chosen", "", "1: the allocation takes it"},
    /* kvdump */
    {NULL, "arch", "", "architecture"},
    {NULL, "n_layers", "", "layers with attention"},
    {NULL, "n_heads", "", "query heads"},
    {NULL, "n_kv_heads", "", "KV heads"},
    {NULL, "head_dim", "", "channels of a head"},
    {NULL, "hidden", "", "channels of the stream"},
    {NULL, "n_vocab", "", "tokens of the vocabulary"},
    {NULL, "n_ctx", "tokens", "the model's context"},
    {NULL, "weight_bytes", "bytes", "of the weights"},
    {NULL, "kv_bytes_per_token", "bytes", "of the cache in fp16"},
    {NULL, "batch", "", "sequences at a time"},
    {NULL, "kv_bytes", "bytes", "of the caches in fp16 (sliding: its window)"},
    {NULL, "kv_share", "share", "of caches and weights together"},
    {NULL, "layer_weight_bytes", "bytes", "a layer's matrices, as halves"},
    {NULL, "layer_kv_bytes", "bytes", "a layer's cache"},
    {NULL, "even_ctx", "tokens", "from which the cache is larger"},
    {NULL, "n_states", "", "layers with a state in place of a cache"},
    {NULL, "state_bytes", "bytes", "of the sequences' states"},
    {NULL, "shared_layers", "",
     "layers that attend with keys and values of others"},
    {NULL, "slide_kv_heads", "", "KV heads of layers that slide"},
    {NULL, "slide_head_dim", "", "channels of their heads"},
    {NULL, "phase", "", "prefill or decode"},
    {NULL, "no", "", "the lecture's number"},
    {NULL, "computation", "", "its name"},
    {NULL, "operations", "", "multiplications and additions"},
    {NULL, "bytes", "bytes", "read or written, once"},
    {NULL, "intensity", "1/byte", "operations a byte"},
    /* kvgen */
    {NULL, "chat_template", "", "of conversations: its hash"},
    {NULL, "chat_date", "", "the date that it asked for"},
    {NULL, "max_tokens", "tokens", "an answer's limit"},
    {NULL, "stops", "", "stop strings"},
    {NULL, "temperature", "", "of sampling; 0: greedy"},
    {NULL, "top_k", "", "tokens to choose from; 0: all"},
    {NULL, "top_p", "share", "probability to choose from"},
    {NULL, "repetition_penalty", "", "1: none"},
    {NULL, "min_tokens", "tokens", "an answer does not end before"},
    {NULL, "shard", "", "part of the prompts, I/N"},
    {NULL, "prompts", "", "prompts of the row"},
    {NULL, "samples", "", "answers to each"},
    {NULL, "answers", "", "answers of the row"},
    {NULL, "prompt_tokens", "tokens", "of a prompt, mean"},
    {"kvgen", "tokens", "tokens", "made, or scored, mean of a prompt's"},
    {NULL, "tokens_se", "tokens", "its error over prompts"},
    {NULL, "same", "share", "of answers that equal the reference's"},
    {NULL, "same_se", "share", "its error over prompts"},
    {NULL, "by_eos", "", "answers ended by the model's end token"},
    {NULL, "by_stop", "", "by a stop string"},
    {NULL, "by_length", "", "by their limit"},
    {NULL, "prompt_seconds", "s", "to the first new token"},
    {"kvgen", "seconds", "s", "from there to the last"},
    {NULL, "tokens_s_se", "1/s", "its error over prompts"},
    {NULL, "log_likelihood", "nats", "of a continuation, mean"},
    {NULL, "log_likelihood_se", "nats", "its error"},
    {NULL, "d_log_likelihood", "nats", "less the reference's, paired"},
    {NULL, "d_log_likelihood_se", "nats", "its error"},
    {NULL, "greedy", "share", "of continuations that are first guesses"},
    {NULL, "greedy_se", "share", "its error"},
    {NULL, "ranks", "", "P:D of --disaggregate"},
    {NULL, "jct", "s", "job completion time"},
    {NULL, "jct_se", "s", "its error"},
    {NULL, "queue_seconds", "s", "until the prompt begins"},
    {NULL, "wait_seconds", "s", "until there is room to decode"},
    {NULL, "communication_seconds", "s", "until the last byte is there"},
    {NULL, "join_seconds", "s", "until it is loaded and decoded"},
    {NULL, "encode_seconds", "s", "quantizing and writing messages"},
    {NULL, "load_seconds", "s", "reading them"},
    {NULL, "transfer_seconds", "s", "first layer to last byte"},
    {NULL, "encode_gb_s", "GB/s", "of K and V in fp16"},
    {NULL, "load_gb_s", "GB/s", "of K and V in fp16"},
    {NULL, "transfer_gb_s", "GB/s", "of wire_bytes"},
    {NULL, "code_bytes", "bytes", "of the prompt's cache"},
    {NULL, "wire_bytes", "bytes", "of all messages"},
    {NULL, "layers_again", "", "layers sent again"},
    {NULL, "attempts", "", "times that the prompt ran"},
    /* kvsim */
    {NULL, "params", "", "the file of parameters"},
    {NULL, "params_hash", "", "of its values, with the changes"},
    {NULL, "set", "", "the changes"},
    {NULL, "gpu", "", "of prefill"},
    {NULL, "decode_gpu", "", "of decoding"},
    {NULL, "dataset", "", "lengths of prompts and answers"},
    {"kvsim", "scheme", "", "the spec, or a name with bits"},
    {"kvsim", "model", "", "of the parameters"},
    {NULL, "bits_sent", "bits", "a value, on the way"},
    {NULL, "bits_kept", "bits", "a value, where it is decoded"},
    {NULL, "prefills", "", "replicas of prefill"},
    {NULL, "decodes", "", "replicas of decoding"},
    {NULL, "capacity_prefill", "1/s", "requests that prefill takes"},
    {NULL, "capacity_network", "1/s", "that the network takes"},
    {NULL, "capacity_decode", "1/s", "that decoding takes"},
    {NULL, "load", "share", "of the least of them"},
    {NULL, "rps", "1/s", "requests"},
    {NULL, "requests", "", "simulated"},
    {NULL, "seeds", "", "simulations"},
    {NULL, "ratio", "", "of jct to the first scheme's"},
    {NULL, "ratio_se", "", "its error over seeds"},
    {NULL, "jct_p50", "s", "median over requests"},
    {NULL, "jct_p90", "s", "percentile 90"},
    {NULL, "jct_p99", "s", "percentile 99"},
    {NULL, "queue", "s", "of jct: before prefill"},
    {NULL, "prefill", "s", "the prompt"},
    {NULL, "quantize", "s", "quantizing"},
    {NULL, "wait", "s", "for room to decode"},
    {NULL, "communication", "s", "sending the cache"},
    {NULL, "unpack", "s", "unpacking"},
    {NULL, "join", "s", "until the next step"},
    {NULL, "step", "s", "steps of decoding: fixed part"},
    {NULL, "read", "s", "reading caches"},
    {NULL, "products", "s", "products with weights"},
    {NULL, "vector", "s", "arithmetic of dequantizing"},
    {NULL, "ttft", "s", "to the first token"},
    {NULL, "ttft_p99", "s", "percentile 99"},
    {NULL, "tpot", "s", "each token after it"},
    {NULL, "tpot_p99", "s", "percentile 99"},
    {NULL, "share_prefill", "%", "of a request's time, mean"},
    {NULL, "share_communication", "%", "with waiting"},
    {NULL, "share_decode", "%", "without vector"},
    {NULL, "share_read", "%", "reading caches"},
    {NULL, "share_vector", "%", "dequantizing"},
    {NULL, "share_quantize", "%", "quantizing"},
    {NULL, "busy_prefill", "%", "use of the replicas"},
    {NULL, "busy_network", "%", "use of the network"},
    {NULL, "busy_decode", "%", "use of the replicas"},
    {"kvsim", "batch", "", "requests in a step"},
    {NULL, "peak_memory", "%", "the fullest replica of decoding"},
    {NULL, "waiting", "", "most requests in CPU memory"},
    {NULL, "measured", "", "times that are measured rows'"},
    {NULL, "request", "", "number from 0"},
    {NULL, "arrives", "s", "when"},
    {NULL, "in", "tokens", "of the prompt"},
    {NULL, "out", "tokens", "of the answer"},
    {NULL, "prefill_replica", "", "which"},
    {NULL, "decode_replica", "", "which"},
    /* kvsim economics */
    {NULL, "quant", "", "file of kvquant's rows"},
    {NULL, "attn", "", "file of kvattn's rows"},
    {NULL, "bits_from", "", "where bits are from"},
    {"kvsim economics", "step", "", "file of kvattn's rows of steps"},
    {NULL, "link_gbits", "Gbit/s", "the link"},
    {NULL, "decode_gb_s", "GB/s", "decoding, of K and V in fp16"},
    {NULL, "send_ms", "ms", "encoding and sending"},
    {NULL, "send_over_f16", "", "over f16's"},
    {NULL, "pays_below_gbits", "Gbit/s", "link, below which it pays"},
    {NULL, "pays_below_piped_gbits", "Gbit/s", "layers sent as they are made"},
    {NULL, "pays_from_ctx", "tokens", "from which it pays"},
    {NULL, "decoded_send_ms", "ms", "with decoding to fp16"},
    {NULL, "decoded_below_gbits", "Gbit/s", "link, below which that pays"},
    {NULL, "decoded_below_piped_gbits", "Gbit/s", "by layers"},
    {NULL, "decoded_from_ctx", "tokens", "from which that pays"},
    {NULL, "capacity_tokens", "tokens", "that the GPU holds"},
    {NULL, "capacity_over_f16", "", "over f16's"},
    {NULL, "step_a_us", "us", "a step: fixed part"},
    {NULL, "step_b_ns", "ns", "a step: each token held"},
    {NULL, "step_us", "us", "a step"},
    {NULL, "step_over_f16", "", "over f16's"},
    {NULL, "step_even_ctx", "tokens", "from which steps are faster"},
    {NULL, "fit_off", "share", "largest error of the fit"},
};

static const struct about *find(const char *table, const char *name)
{
    const struct about *any = NULL;

    for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++) {
        const struct about *a = &lines[i];

        if (strcmp(a->name, name))
            continue;
        if (a->tool &&
            (!strcmp(a->tool, kv_program()) || !strcmp(a->tool, table)))
            return a;
        if (!a->tool)
            any = a;
    }
    return any;
}

static int widest(const char *table, const char *const *columns, bool unit)
{
    size_t most = 0;

    for (; *columns; columns++) {
        const struct about *a = find(table, *columns);
        const size_t n = strlen(!unit ? *columns : a ? a->unit : "");

        most = n > most ? n : most;
    }
    return (int)most;
}

void kv_columns_about(const char *table, const char *const *columns)
{
    const int name = widest(table, columns, false),
              unit = widest(table, columns, true);

    bool specs = false;

    printf("%s:\n", table);
    for (; *columns; columns++) {
        const struct about *a = find(table, *columns);

        printf("  %-*s  %-*s  %s\n", name, *columns, unit, a ? a->unit : "",
               a ? a->text : "");
        specs = specs || !strcmp(*columns, "calib_hash");
    }
    if (specs)
        printf("  %-*s  %-*s  %s\n", name, "params", unit, "",
               "of the specs: params.b, params.K.b, ...");
}
