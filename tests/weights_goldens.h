/* Made by tests/make_weights_goldens.py: SHA-256 (16 digits) of the decoded
 * values of 1000 random blocks, and the places of halves in a block. */
enum { GOLDEN_BLOCKS = 1000 };
static const struct {
    const char *values;
    int halves[2];
} goldens[KV_STORED_OTHER] = {
    [KV_STORED_Q4_0] = {"ca215a21566359a3", {0, -1}},
    [KV_STORED_Q4_1] = {"642fb820779781f2", {0, 2}},
    [KV_STORED_Q5_0] = {"691bebff538e7780", {0, -1}},
    [KV_STORED_Q5_1] = {"1cc32c3217c7799f", {0, 2}},
    [KV_STORED_Q8_0] = {"3b314a3532b3965c", {0, -1}},
    [KV_STORED_Q2_K] = {"2519245c2d77768e", {80, 82}},
    [KV_STORED_Q3_K] = {"cb30d1bd17dab28f", {108, -1}},
    [KV_STORED_Q4_K] = {"ea43cfcea6f7b6cc", {0, 2}},
    [KV_STORED_Q5_K] = {"eeb705beb67ae649", {0, 2}},
    [KV_STORED_Q6_K] = {"51953595795a30e2", {208, -1}},
    [KV_STORED_IQ4_NL] = {"c144c28497e7b20a", {0, -1}},
    [KV_STORED_IQ4_XS] = {"58eff5eb5223c0c5", {0, -1}},
    [KV_STORED_MXFP4] = {"6f6f180b2ef07e23", {-1, -1}},
    [KV_STORED_TQ1_0] = {"455cd7106183b3c7", {52, -1}},
    [KV_STORED_TQ2_0] = {"f808cee5e5e80f9c", {64, -1}},
    [KV_STORED_IQ1_S] = {"ca424df6df974ff0", {0, -1}},
    [KV_STORED_IQ1_M] = {"2f137a5e20c9da8f", {-1, -1}},
    [KV_STORED_IQ2_XXS] = {"15be8bae243de3f9", {0, -1}},
    [KV_STORED_IQ2_XS] = {"2b449f63b4a614ba", {0, -1}},
    [KV_STORED_IQ2_S] = {"ace306fb877f4dfd", {0, -1}},
    [KV_STORED_IQ3_XXS] = {"33290e0772b89536", {0, -1}},
    [KV_STORED_IQ3_S] = {"25d59399076cef14", {0, -1}},
    [KV_STORED_NVFP4] = {"4cfdfaabb499fee6", {-1, -1}},
};
